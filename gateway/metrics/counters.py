"""The numbers behind the metrics of requests: histograms, and one set of them for each model.

Plain counting without a metrics library; the families in `gateway/metrics/families/` name them.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

# vLLM's buckets, so that its dashboards fit; three finer ones for the inter-token latency.
_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
VLLM_ITL_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_ITL_S = (0.001, 0.0025, 0.005, *VLLM_ITL_S)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKENS = tuple(float(digit * 10**n) for n in range(7) for digit in (1, 2, 5))
_DECISION_S = (
    *(0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0),
)

HTTP_S = (
    *(0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds for the delay of a loop, of the gateway's or of a worker's main thread."""


@dataclass(slots=True)
class ConnectionCounts:
    """Connections of HTTP clients."""

    n_open: int = 0
    n_closed_idle: int = 0
    """Idle connections that were closed to make room for new ones."""
    n_refused: int = 0


class Histogram:
    """Counts values by upper bound. `observe` takes 0.2 us; it is called for every token."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def __repr__(self) -> str:
        return f"<Histogram n={self.n} total={self.total:.3f}>"

    @property
    def n(self) -> int:
        """Return how many values were counted."""
        return sum(self._counts)

    def observe(self, value: float, n: int = 1) -> None:
        """Count n events of this value."""
        self._counts[bisect_left(self._bounds, value)] += n
        self.total += value * n

    def parts(self) -> list[float]:
        """Return the counts of each bucket, then the total."""
        return [*self._counts, self.total]

    def add(self, parts: Sequence[float]) -> None:
        """Add the parts of another histogram; those of one with other bounds do not count."""
        if len(parts) == len(self._counts) + 1:
            self._counts = [a + int(b) for a, b in zip(self._counts, parts[:-1], strict=True)]
            self.total += parts[-1]

    def cumulative(self) -> list[tuple[float, int]]:
        """Return each bound with how many values are at most that; the last bound is infinite."""
        rows: list[tuple[float, int]] = []
        n = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            n += count
            rows.append((bound, n))
        return rows


BOUNDS = {
    "ttft": _TTFT_S,
    "itl": _ITL_S,
    "queue": _TTFT_S,
    "gap": _TTFT_S,
    "cancel": _TTFT_S,
    "decision": _DECISION_S,
    "e2e": _REQUEST_S,
    "waiting": _REQUEST_S,
    "prefill": _REQUEST_S,
    "decode": _REQUEST_S,
    "inference": _REQUEST_S,
    "tpot": VLLM_ITL_S,
    "n_prompt": _TOKENS,
    "n_cached": _TOKENS,
    "n_predicted": _TOKENS,
    "n_max": _TOKENS,
}
"""The histograms of each model, and their bounds in seconds or tokens."""


class ModelLatencies:
    """The histograms of one model; the pool keeps a reference, so no label is looked up."""

    __slots__ = tuple(BOUNDS)

    ttft: Histogram
    itl: Histogram
    queue: Histogram
    gap: Histogram
    """Pauses of streams that continued at another worker."""
    cancel: Histogram
    """From the order to cancel a task to the worker's confirmation."""
    decision: Histogram
    """Time in which the dispatcher assigns a task or puts it into the queue."""
    e2e: Histogram
    """From the submission of a task to its end; this and the next ones have vLLM's names."""
    waiting: Histogram
    prefill: Histogram
    decode: Histogram
    inference: Histogram
    tpot: Histogram
    """Mean time of a token after the first, one value a task."""
    n_prompt: Histogram
    n_cached: Histogram
    n_predicted: Histogram
    n_max: Histogram
    """Maximum length of the answer that the request sets, if it sets one."""

    def __init__(self) -> None:
        for name, bounds in BOUNDS.items():
            setattr(self, name, Histogram(bounds))

    def began(self, ttft_s: float, n_prompt: int, n_cached: int) -> None:
        """Count the first token of a task, whose prompt is read now."""
        self.ttft.observe(ttft_s)
        self.n_prompt.observe(n_prompt)
        self.n_cached.observe(min(n_cached, n_prompt))
