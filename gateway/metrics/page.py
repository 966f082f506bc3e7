"""The text of `GET /metrics`: llama-server's lines unchanged, the pool's own, and vLLM's.

Current values (workers, slots, queue) are read from the pool at each scrape. The text comes in
pieces of a few milliseconds at most, so that streams go on between them.
"""

import logging
from collections.abc import Iterator

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


def pieces(metrics: Metrics, view: PoolView) -> Iterator[str]:
    """Write the text family by family; one part that raises is left out, logged and counted.

    The throughput gauges cover the time since the last call.
    """
    yield _of_llama_server(metrics, view)
    for part in _PARTS:
        try:
            yield from part(metrics, view)
        except Exception:
            logger.exception(
                "metrics incomplete",
                extra={"place": part.__name__, "action": "the page leaves this part out"},
            )
            metrics.fault("metrics")


def _of_llama_server(metrics: Metrics, view: PoolView) -> str:
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
