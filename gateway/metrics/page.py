"""The text of `GET /metrics`: llama-server's lines unchanged, and the pool's own.

Current values (workers, slots, queue) are read from the pool at each scrape.
"""

import logging
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.metrics.families.http_connections import of_connections
from gateway.metrics.families.latencies import of_latencies, of_loop
from gateway.metrics.families.recovery import of_recovery
from gateway.metrics.families.tasks import of_routes, of_tasks
from gateway.metrics.families.workers import of_places, of_workers
from gateway.metrics.llama_server import Snapshot, legacy_text
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import PoolView

logger = logging.getLogger(__name__)

_PARTS = (
    *(of_latencies, of_connections, of_routes, of_places, of_loop),
    *(of_workers, of_tasks, of_recovery),
)


def render(metrics: Metrics, view: PoolView) -> bytes:
    """Write the whole text; the throughput gauges cover the time since the last call."""
    registry = CollectorRegistry()
    registry.register(_Families(metrics, view))
    totals = metrics.stats.totals()
    now = Snapshot(
        totals=totals,
        window=metrics.since_last_scrape(totals),
        latest=[metrics.stats.latest(worker.name) for worker in view.workers()],
        n_processing=sum(worker.n_busy for worker in view.workers()),
        n_deferred=sum(view.queue_depths().values()),
        accepted_at=metrics.stats.accepted_at(),
    )
    return legacy_text(now).encode() + generate_latest(registry)


class _Families(Collector):
    """The pool's own metric families at one scrape."""

    def __init__(self, metrics: Metrics, view: PoolView) -> None:
        self._metrics = metrics
        self._view = view

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that the registry does not collect at registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Write every part; one that raises is left out, logged and counted."""
        for part in _PARTS:
            try:
                yield from part(self._metrics, self._view)
            except Exception:
                logger.exception(
                    "metrics incomplete",
                    extra={"place": part.__name__, "action": "the page leaves this part out"},
                )
                self._metrics.fault("metrics")
