"""Effects of faults: tasks that continued elsewhere, quarantined requests, ejected workers."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import Metric

from gateway.metrics.families.rows import counter, gauge
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import PoolView


def of_recovery(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write how many tasks continued elsewhere, and what is quarantined or ejected."""
    yield counter(
        "llamapool_continued_tasks_total",
        "Tasks that left their worker for another one, by cause and whether an answer had started.",
        ("model", "cause", "answer"),
        metrics.moves.items(),
    )
    yield counter(
        "llamapool_reread_tokens_total",
        "Tokens that tasks read again because they left their worker.",
        ("model",),
        metrics.reread.items(),
    )
    ejected: Counter[tuple[str]] = Counter()
    for worker in view.workers():
        ejected[(worker.model,)] += worker.is_ejected
    yield gauge(
        "llamapool_ejected_workers",
        "Workers that get one task at a time, because they fail or are slow.",
        ("model",),
        ejected.items(),
    )
    yield gauge(
        "llamapool_quarantined_requests",
        "Requests that are refused because workers died with them.",
        (),
        [((), view.n_quarantined())],
    )
