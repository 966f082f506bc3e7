"""Tokens a second of each worker, over the last ten seconds.

Prometheus derives rates from the counters; these are for `llamapool status` and the pool page.
"""

from collections import deque
from dataclasses import dataclass, field

_WINDOW_S = 10.0
"""Seconds over which a rate is taken."""
_MAX_SAMPLES = 64
"""Maximum samples in a window: each end of a task brings a heartbeat, so close ones are merged."""


@dataclass(slots=True)
class _Series:
    epoch: int
    samples: "deque[tuple[float, int]]" = field(default_factory=deque)
    """Time and tokens generated since the worker's start."""


class TokenRates:
    """The last heartbeats of each worker."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}

    def note(self, worker: str, epoch: int, n_predicted: int, now: float) -> None:
        """Store the number of tokens that a worker has generated since it started."""
        series = self._series.get(worker)
        if series is None or series.epoch != epoch:
            series = self._series[worker] = _Series(epoch)
        samples = series.samples
        if len(samples) >= 2 and now - samples[-2][0] < _WINDOW_S / _MAX_SAMPLES:
            samples[-1] = (now, n_predicted)
        else:
            samples.append((now, n_predicted))
        while len(samples) > 2 and now - samples[1][0] > _WINDOW_S:
            samples.popleft()

    def rate(self, worker: str, now: float) -> float:
        """Return the tokens a second; 0 for a worker without a heartbeat within the window."""
        series = self._series.get(worker)
        if series is None or now - series.samples[-1][0] > _WINDOW_S:
            return 0.0
        first, last = series.samples[0], series.samples[-1]
        seconds = last[0] - first[0]
        return (last[1] - first[1]) / seconds if seconds > 0 else 0.0

    def forget(self, worker: str) -> None:
        """Drop a worker that will not come back."""
        self._series.pop(worker, None)
