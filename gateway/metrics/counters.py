"""The numbers behind the metrics: histograms, and sums over workers that come and go.

Plain counting without a metrics library; `metrics.py` gives the numbers their names.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest

from protocol.wire.facts import Stats

_LATEST = ("n_kv_used", "n_kv", "n_branches", "n_host_bytes", "link_lag_s")
_LARGEST, _LISTED = "n_tokens_max", "accepted_at"
SUMMED = tuple(f.name for f in fields(Stats) if f.name not in (*_LATEST, _LARGEST, _LISTED))
"""Fields of `Stats` that only grow during a run of a worker, and are added up over all runs."""


# vLLM's buckets, so that its dashboards fit; three finer ones for the inter-token latency.
_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_ITL_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)


@dataclass(slots=True)
class ConnectionCounts:
    """Connections of HTTP clients."""

    n_open: int = 0
    n_closed_idle: int = 0
    """Idle connections that were closed to make room for new ones."""
    n_refused: int = 0


class Histogram:
    """Counts durations by upper bound. `observe` takes 0.2 us; it is called for every token."""

    __slots__ = ("_bounds", "_counts", "total_s")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    def __repr__(self) -> str:
        return f"<Histogram n={sum(self._counts)} total_s={self.total_s:.3f}>"

    def observe(self, seconds: float, n: int = 1) -> None:
        """Count n events of this duration."""
        self._counts[bisect_left(self._bounds, seconds)] += n
        self.total_s += seconds * n

    def parts(self) -> list[float]:
        """Return the counts of each bucket, then the total in seconds."""
        return [*self._counts, self.total_s]

    def add(self, parts: Sequence[float]) -> None:
        """Add the parts of another histogram; those of one with other bounds do not count."""
        if len(parts) == len(self._counts) + 1:
            self._counts = [a + int(b) for a, b in zip(self._counts, parts[:-1], strict=True)]
            self.total_s += parts[-1]

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts under their `le` labels."""
        rows: list[tuple[str, float]] = []
        n = 0
        for bound, count in zip((*self._bounds, None), self._counts, strict=True):
            n += count
            rows.append(("+Inf" if bound is None else f"{bound:g}", n))
        return rows


class ModelLatencies:
    """The histograms of one model; the pool keeps a reference, so no label is looked up."""

    __slots__ = ("gap", "itl", "queue", "ttft")

    def __init__(self) -> None:
        self.ttft = Histogram(_TTFT_S)
        self.itl = Histogram(_ITL_S)
        self.queue = Histogram(_TTFT_S)
        self.gap = Histogram(_TTFT_S)
        """Pauses of streams that went on at another worker."""


@dataclass(slots=True)
class WorkerSums:
    """Sums of one worker name for one model, over all its runs."""

    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMMED, 0))
    n_tokens_max: int = 0
    accepted_at: list[int] = field(default_factory=list)


class StatsBook:
    """Adds up the workers' `Stats`, which begin at zero with each process."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], WorkerSums] = {}
        self._last: dict[str, tuple[int, Stats]] = {}

    def __repr__(self) -> str:
        totals = self.totals()
        return f"<StatsBook n_prompt={totals['n_prompt']} n_predicted={totals['n_predicted']}>"

    def beat(self, worker: str, model: str, epoch: int, stats: Stats) -> None:
        """Store the newest counters of a worker; a new epoch begins at zero."""
        last_epoch, last = self._last.get(worker, (epoch, Stats()))
        if last_epoch != epoch:
            last = Stats()
        self._last[worker] = (epoch, stats)
        row = self._sums.setdefault((worker, model), WorkerSums())
        for name in SUMMED:
            row.sums[name] += max(0, getattr(stats, name) - getattr(last, name))
        row.n_tokens_max = max(row.n_tokens_max, stats.n_tokens_max)
        new = [
            max(0, n - before)
            for n, before in zip_longest(stats.accepted_at, last.accepted_at, fillvalue=0)
        ]
        row.accepted_at = [sum(pair) for pair in zip_longest(row.accepted_at, new, fillvalue=0)]

    def latest(self, worker: str) -> Stats:
        """Return the counters of a worker's current run."""
        return self._last.get(worker, (0, Stats()))[1]

    def rows(self) -> Mapping[tuple[str, str], WorkerSums]:
        """Return the sums by worker and model."""
        return self._sums

    def accepted_at(self) -> list[int]:
        """Return the accepted draft tokens of all workers, by position in the draft."""
        lists = [row.accepted_at for row in self._sums.values()]
        return [sum(column) for column in zip_longest(*lists, fillvalue=0)]

    def totals(self) -> dict[str, float]:
        """Return the sums over all workers."""
        rows = self._sums.values()
        totals = {name: sum(row.sums[name] for row in rows) for name in SUMMED}
        totals[_LARGEST] = max((row.n_tokens_max for row in rows), default=0)
        return totals
