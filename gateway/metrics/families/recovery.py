"""What faults have cost: tasks that went on elsewhere, requests and workers that are kept apart."""

from collections import Counter
from collections.abc import Iterator

from gateway.metrics.families.rows import counter, gauge
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import PoolView


def of_recovery(metrics: Metrics, view: PoolView) -> Iterator[str]:
    """Write what went on elsewhere, and what is kept apart."""
    yield counter(
        "llamapool_continued_tasks_total",
        "Tasks that left their worker for another one, by why, and by what was there.",
        ("model", "cause", "answer"),
        metrics.moves.items(),
    )
    yield counter(
        "llamapool_reread_tokens_total",
        "Tokens that they read again.",
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
