"""What faults have cost: tasks that went on elsewhere, requests and workers that are kept apart."""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.metrics.families import labelled


class RecoveryCounts:
    """Counts of one gateway."""

    def __init__(self) -> None:
        self.moves: Counter[tuple[str, str, str]] = Counter()
        """By model, cause, and whether a part of the answer was there (`begun`, else `none`)."""
        self.reread: Counter[tuple[str]] = Counter()

    def __repr__(self) -> str:
        return f"<RecoveryCounts moves={self.moves.total()} reread={self.reread.total()}>"

    def moved(self, model: str, cause: str | None, *, has_begun: bool) -> None:
        """Count a task that left its worker for another one."""
        self.moves[model, cause or "", "begun" if has_begun else "none"] += 1

    def read_again(self, model: str, n_tokens: int) -> None:
        """Count the tokens that were read again because a task went on elsewhere."""
        self.reread[(model,)] += n_tokens


def recovery_families(
    counts: RecoveryCounts, workers: Iterable[tuple[str, bool]], n_quarantined: int
) -> Iterator[Metric]:
    """Write the families; `workers` is the model of each worker, and whether it is ejected."""
    moved = CounterMetricFamily(
        "llamapool_continued_tasks",
        "Tasks that left their worker for another one, by why, and by what was there.",
        labels=("model", "cause", "answer"),
    )
    yield labelled(moved, counts.moves.items())
    again = CounterMetricFamily(
        "llamapool_reread_tokens", "Tokens that they read again.", labels=("model",)
    )
    yield labelled(again, counts.reread.items())
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
