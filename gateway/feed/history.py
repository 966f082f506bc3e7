"""The last ten minutes of the pool, a sample a second. Pure; times are passed in.

What workers report is the same at each gateway. What a gateway counts itself (waiting tasks, times
to the first token, tasks that went on elsewhere) is added up over the gateways of a host.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

N_SECONDS = 600
"""Samples that are kept, one a second: what the page shows."""
_RATE_S = 4
"""Seconds over which a rate is taken: a worker reports once a second, at its own moment."""
_TTFT_S = 10
"""Seconds over which a quantile of the time to the first token is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over all workers, since the start of the gateway."""

    n_predicted: float = 0
    n_prompt: float = 0
    n_cached: float = 0
    n_busy: int = 0
    """Slots, now."""
    n_slots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySecond:
    """What one gateway counted in one second."""

    n_waiting: int = 0
    n_moved: int = 0
    ttft: Mapping[int, int] = field(default_factory=dict)
    """First tokens by bucket of the histogram; empty buckets are left out."""

    def row(self, second: int) -> list[Any]:
        """Write it for another gateway."""
        return [second, self.n_waiting, self.n_moved, list(self.ttft.items())]


def read_seconds(rows: Iterable[Sequence[Any]]) -> dict[int, GatewaySecond]:
    """Read what another gateway wrote."""
    return {
        second: GatewaySecond(n_waiting=waiting, n_moved=moved, ttft=dict(map(tuple, ttft)))
        for second, waiting, moved, ttft in rows
    }


class RecentMinutes:
    """The samples of this gateway."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        """`bounds_s` are the upper bounds of the buckets."""
        self._bounds_s = bounds_s
        self._totals: deque[tuple[int, Totals]] = deque(maxlen=N_SECONDS + _RATE_S)
        self._own: dict[int, GatewaySecond] = {}
        self._counts: Sequence[float] = ()
        self._n_moved = 0

    def add(
        self, second: int, totals: Totals, *, n_waiting: int, n_moved: int, ttft: Sequence[float]
    ) -> None:
        """Add a sample; `n_moved` and `ttft` (counts by bucket) are sums since the start.

        A second that is there already is left alone; after a step of the clock into the past all
        begins anew.
        """
        if self._totals and second <= self._totals[-1][0]:
            if second == self._totals[-1][0]:
                return
            self._totals.clear()
            self._own.clear()
        new = {i: int(n - (self._counts[i] if self._counts else 0)) for i, n in enumerate(ttft)}
        self._own[second] = GatewaySecond(
            n_waiting=n_waiting,
            n_moved=n_moved - self._n_moved,
            ttft={i: n for i, n in new.items() if n > 0},
        )
        self._counts, self._n_moved = ttft, n_moved
        self._totals.append((second, totals))
        while next(iter(self._own)) <= second - N_SECONDS:
            del self._own[next(iter(self._own))]

    @property
    def newest(self) -> int:
        """The second of the newest sample; 0 if there is none."""
        return self._totals[-1][0] if self._totals else 0

    def own_rows(self) -> list[list[Any]]:
        """Write what this gateway counted, for others."""
        return [sample.row(second) for second, sample in self._own.items()]

    def rows(self, others: Sequence[Mapping[int, GatewaySecond]], since: int = 0) -> dict[str, Any]:
        """Return the samples after a second, by their second.

        A row is tokens/s written, prompt tokens/s computed, the share of the prompts that came from
        a cache, TTFT p50 and p95 in s (null where there is none), busy slots, slots, waiting tasks,
        and tasks that went on elsewhere in that second.
        """
        counted = [self._own, *others]
        rows: dict[str, Any] = {}
        before: deque[tuple[int, Totals]] = deque(maxlen=_RATE_S + 1)
        for second, totals in self._totals:
            before.append((second, totals))
            while before[0][0] < second - _RATE_S:
                before.popleft()
            if second > max(since, self.newest - N_SECONDS):
                rows[str(second)] = self._row(second, before, counted)
        return rows

    def _row(
        self,
        second: int,
        lately: Sequence[tuple[int, Totals]],
        counted: Sequence[Mapping[int, GatewaySecond]],
    ) -> list[Any]:
        (first_at, first), last = lately[0], lately[-1][1]
        seconds = max(1, second - first_at)
        n_prompt, n_cached = last.n_prompt - first.n_prompt, last.n_cached - first.n_cached
        ttft: Counter[int] = Counter()
        for own in counted:
            for earlier in range(second - _TTFT_S + 1, second + 1):
                if earlier in own:
                    ttft.update(own[earlier].ttft)
        now = [own[second] for own in counted if second in own]
        return [
            round((last.n_predicted - first.n_predicted) / seconds, 1),
            round(n_prompt / seconds, 1),
            round(n_cached / (n_prompt + n_cached), 3) if n_prompt + n_cached > 0 else None,
            self._ttft(ttft, 0.5),
            self._ttft(ttft, 0.95),
            last.n_busy,
            last.n_slots,
            sum(sample.n_waiting for sample in now),
            sum(sample.n_moved for sample in now),
        ]

    def _ttft(self, counts: Mapping[int, int], share: float) -> float | None:
        found = quantile(counts, self._bounds_s, share)
        return None if found is None else round(found, 4)


def quantile(counts: Mapping[int, float], bounds: Sequence[float], share: float) -> float | None:
    """Return the value below which this share lies, as Prometheus' `histogram_quantile` does.

    `counts` are those of single buckets by index, not cumulative. None if all are 0; the highest
    finite bound for what lies beyond it.
    """
    rank = share * sum(counts.values())
    if not rank:
        return None
    below = 0.0
    for index in sorted(counts):
        if below + counts[index] >= rank:
            low = bounds[index - 1] if index else 0.0
            high = bounds[index] if index < len(bounds) else math.inf
            if math.isinf(high):
                return low
            return low + (high - low) * (rank - below) / counts[index]
        below += counts[index]
    raise AssertionError("the last bucket reaches every rank")
