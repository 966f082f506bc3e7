"""What faults have cost: tasks that went on elsewhere, requests and workers that are kept apart."""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.metrics.families import labelled


def recovery_families(
    moves: Counter[tuple[str, str, str]],
    reread: Counter[tuple[str]],
    workers: Iterable[tuple[str, bool]],
    n_quarantined: int,
) -> Iterator[Metric]:
    """Write the families; `workers` is the model of each worker, and whether it is ejected."""
    moved = CounterMetricFamily(
        "llamapool_continued_tasks",
        "Tasks that left their worker for another one, by why, and by what was there.",
        labels=("model", "cause", "answer"),
    )
    yield labelled(moved, moves.items())
    again = CounterMetricFamily(
        "llamapool_reread_tokens", "Tokens that they read again.", labels=("model",)
    )
    yield labelled(again, reread.items())
    ejected: Counter[tuple[str]] = Counter()
    for model, is_ejected in workers:
        ejected[(model,)] += is_ejected
    family = GaugeMetricFamily(
        "llamapool_ejected_workers",
        "Workers that get one task at a time, because they fail or are slow.",
        labels=("model",),
    )
    yield labelled(family, ejected.items())
    yield GaugeMetricFamily(
        "llamapool_quarantined_requests",
        "Requests that are refused because workers died with them.",
        value=n_quarantined,
    )
