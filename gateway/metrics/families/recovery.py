"""What faults have cost: tasks that went on elsewhere, requests and workers that are kept apart."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.metrics.families.rows import labelled
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import PoolView


def of_recovery(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write what went on elsewhere, and what is kept apart."""
    moved = CounterMetricFamily(
        "llamapool_continued_tasks",
        "Tasks that left their worker for another one, by why, and by what was there.",
        labels=("model", "cause", "answer"),
    )
    yield labelled(moved, metrics.moves.items())
    again = CounterMetricFamily(
        "llamapool_reread_tokens", "Tokens that they read again.", labels=("model",)
    )
    yield labelled(again, metrics.reread.items())
    ejected: Counter[tuple[str]] = Counter()
    for worker in view.workers():
        ejected[(worker.model,)] += worker.is_ejected
    family = GaugeMetricFamily(
        "llamapool_ejected_workers",
        "Workers that get one task at a time, because they fail or are slow.",
        labels=("model",),
    )
    yield labelled(family, ejected.items())
    yield GaugeMetricFamily(
        "llamapool_quarantined_requests",
        "Requests that are refused because workers died with them.",
        value=view.n_quarantined(),
    )
