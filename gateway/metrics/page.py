"""The text of `GET /metrics`: llama-server's lines unchanged, the pool's own, and vLLM's.

Current values (workers, slots, queue) are read from the pool at each scrape.
"""

import logging
from collections.abc import Iterable, Iterator

from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector

from gateway.metrics.families.http_connections import of_connections
from gateway.metrics.families.keys import of_keys
from gateway.metrics.families.latencies import of_latencies, of_loop
from gateway.metrics.families.recovery import of_recovery
from gateway.metrics.families.tasks import of_faults, of_routes, of_tasks
from gateway.metrics.families.vllm import of_vllm
from gateway.metrics.families.workers import of_places, of_workers
from gateway.metrics.llama_server import Snapshot, legacy_text
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import PoolView

logger = logging.getLogger(__name__)

_PARTS = (
    *(of_latencies, of_connections, of_routes, of_places, of_loop),
    *(of_workers, of_tasks, of_recovery, of_keys, of_vllm, of_faults),
)


def families(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Collect the families; a part that raises is left out, logged and counted.

    Takes 4 us for each line of the text.
    """
    for part in _PARTS:
        try:
            yield from part(metrics, view)
        except Exception:
            logger.exception(
                "metrics incomplete",
                extra={"place": part.__name__, "action": "the page leaves this part out"},
            )
            metrics.fault("metrics")


def write(first: str, collected: Iterable[Metric]) -> bytes:
    """Write llama-server's lines, then the families; takes 4 us for each line."""
    return first.encode() + generate_latest(_Collected(collected))


class _Collected(Collector):
    def __init__(self, collected: Iterable[Metric]) -> None:
        self._collected = collected

    def collect(self) -> Iterable[Metric]:
        return self._collected


def of_llama_server(metrics: Metrics, view: PoolView) -> str:
    """Write llama-server's own lines; the throughput gauges cover the time since the last call."""
    totals = metrics.stats.totals()
    now = Snapshot(
        totals=totals,
        window=metrics.since_last_scrape(totals),
        latest=[metrics.stats.latest(worker.name) for worker in view.workers()],
        n_processing=sum(worker.n_busy for worker in view.workers()),
        n_deferred=sum(view.queue_depths().values()),
        accepted_at=metrics.stats.accepted_at(),
    )
    return legacy_text(now)
