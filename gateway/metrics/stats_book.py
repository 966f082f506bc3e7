"""The workers' counters, added up over workers that come and go, and over gateways.

A worker counts from zero in each run, and every gateway receives the same numbers. A gateway that
starts later takes over from the others what it has missed, so that no sum falls at a replacement.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from operator import attrgetter, itemgetter
from typing import Any

from protocol.wire.facts import NOT_SUMMED, Stats

_LARGEST, _LISTED = "n_tokens_max", "accepted_at"
SUMMED = tuple(f.name for f in fields(Stats) if f.metadata != NOT_SUMMED)
"""Fields of `Stats` that only grow during a run of a worker, and are added up over all runs."""
_values = attrgetter(*SUMMED)
_json_values = itemgetter(*SUMMED)
_MAX_RUNS = 16
"""Maximum runs of a worker that have a row each; the sums of older ones are kept in one row."""


@dataclass(slots=True)
class WorkerSums:
    """Counters of one worker name for one model, by run."""

    runs: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """By epoch, in the order of `SUMMED`."""
    accepted: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By epoch: accepted draft tokens by their position."""
    n_tokens_max: int = 0

    def note(self, epoch: int, values: tuple[float, ...], accepted: Iterable[int]) -> None:
        """Store the counters of a run; a counter never decreases."""
        before = self.runs.get(epoch)
        self.runs[epoch] = tuple(map(max, before, values)) if before else values
        pairs = zip_longest(self.accepted.get(epoch, ()), accepted, fillvalue=0)
        self.accepted[epoch] = tuple(map(max, pairs))
        if len(self.runs) > _MAX_RUNS:
            self._fold(epoch)

    def _fold(self, current: int) -> None:
        """Add the oldest run to the one after it, under the epoch of that one.

        Never the current one, whose counters come again: it seems to be the oldest after the clock
        of its host was set back.
        """
        first, second = sorted(epoch for epoch in self.runs if epoch != current)[:2]
        counts, other = self.runs.pop(first), self.runs.pop(second)
        self.runs[second] = tuple(a + b for a, b in zip(counts, other, strict=True))
        pairs = zip_longest(self.accepted.pop(first), self.accepted.pop(second), fillvalue=0)
        self.accepted[second] = tuple(map(sum, pairs))

    def take_over(self, row: Mapping[str, Any]) -> None:
        """Merge the counters that another gateway has of the same worker: a row of `as_rows`."""
        self.n_tokens_max = max(self.n_tokens_max, int(row["n_tokens_max"]))
        theirs = {int(epoch): counts for epoch, counts in row["runs"].items()}
        first = min(theirs, default=0)
        # Its oldest row holds all runs before it: those are not to be counted twice.
        if len(theirs) >= _MAX_RUNS:
            for epoch in [run for run in self.runs if run < first]:
                del self.runs[epoch], self.accepted[epoch]
        for epoch, their_counts in sorted(theirs.items()):
            if len(self.runs) >= _MAX_RUNS and epoch < min(self.runs):
                continue  # it is in the own oldest row
            try:
                values = _json_values(their_counts)
            except KeyError:  # of another release
                values = tuple(their_counts.get(name, 0) for name in SUMMED)
            if values != self.runs.get(epoch):
                self.note(epoch, values, their_counts.get(_LISTED, ()))


class StatsBook:
    """Adds up the workers' `Stats`, which begin at zero with each process."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], WorkerSums] = {}
        """By worker and model; what was heard last stands last."""
        self._latest: dict[str, Stats] = {}

    def __repr__(self) -> str:
        totals = self.totals()
        return f"<StatsBook n_prompt={totals['n_prompt']} n_predicted={totals['n_predicted']}>"

    def record(self, worker: str, model: str, epoch: int, stats: Stats) -> None:
        """Store the newest counters of a worker; a new epoch begins at zero."""
        self._latest[worker] = stats
        row = self._rows.pop((worker, model), None) or WorkerSums()
        self._rows[worker, model] = row
        row.note(epoch, _values(stats), stats.accepted_at)
        row.n_tokens_max = max(row.n_tokens_max, stats.n_tokens_max)

    def forget(self, worker: str) -> None:
        """Forget the newest values of a worker that is gone; the sums stay."""
        self._latest.pop(worker, None)

    def latest(self, worker: str) -> Stats:
        """Return the counters of a worker's current run."""
        return self._latest.get(worker) or Stats()

    def sums(self) -> Mapping[tuple[str, str], Mapping[str, float]]:
        """Return the sums by worker and model."""
        return {key: _total(row.runs.values()) for key, row in self._rows.items()}

    def accepted_at(self) -> list[int]:
        """Return the accepted draft tokens of all workers, by position in the draft."""
        lists = [counts for row in self._rows.values() for counts in row.accepted.values()]
        return [sum(column) for column in zip_longest(*lists, fillvalue=0)]

    def totals(self) -> dict[str, float]:
        """Return the sums over all workers."""
        totals = _total(values for row in self._rows.values() for values in row.runs.values())
        totals[_LARGEST] = max((row.n_tokens_max for row in self._rows.values()), default=0)
        return totals

    def as_rows(self) -> list[dict[str, Any]]:
        """Return all rows for other gateways; counters by name, for other releases."""
        return [
            {
                "worker": worker,
                "model": model,
                "n_tokens_max": row.n_tokens_max,
                "runs": {
                    epoch: dict(zip(SUMMED, values, strict=True))
                    | {_LISTED: list(row.accepted[epoch])}
                    for epoch, values in row.runs.items()
                },
            }
            for (worker, model), row in self._rows.items()
        ]

    def take_over(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Merge the rows that another gateway has of the workers."""
        for row in rows:
            key = str(row["worker"]), str(row["model"])
            self._rows.setdefault(key, WorkerSums()).take_over(row)


def _total(runs: Iterable[tuple[float, ...]]) -> dict[str, float]:
    columns = list(zip(*runs, strict=True)) or [()] * len(SUMMED)
    return dict(zip(SUMMED, map(sum, columns), strict=True))
