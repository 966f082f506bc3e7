"""From transcripts to figures, defined as aiperf and `vllm bench serve` define them.

The definitions are in docs/building/benchmarking.md. `table.py` prints the figures, `as_dict`
returns them as JSON.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.bench.client.transcript import Failure, Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Distribution of a figure."""

    n: int
    mean: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits that a request must keep to count as good, in milliseconds; 0 is no limit."""

    ttft_ms: float = 0.0
    itl_ms: float = 0.0
    """Limit for the mean over the tokens of a request."""
    e2e_ms: float = 0.0

    def __bool__(self) -> bool:
        return any((self.ttft_ms, self.itl_ms, self.e2e_ms))

    def is_kept(self, request: Transcript) -> bool:
        """Return whether a finished request kept all limits."""
        if self.ttft_ms and not (request.arrivals_s and request.ttft_s * 1e3 <= self.ttft_ms):
            return False
        if self.itl_ms and request.n_output > 1 and request.tpot_s * 1e3 > self.itl_ms:
            return False
        return not self.e2e_ms or request.e2e_s * 1e3 <= self.e2e_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Figures of a load. Times are in milliseconds, those named `_s` in seconds."""

    n_ok: int
    n_failed: int
    n_cut: int
    errors: Mapping[str, int]
    duration_s: float
    requests_per_s: float
    inputs_per_s: float
    output_tokens_per_s: float
    input_tokens_per_s: float
    n_prompt: int
    n_cached: int
    n_computed: int
    """Prompt tokens that the server reports as computed; -1 if it does not report them."""
    n_output: int
    ttft_ms: Distribution | None
    itl_ms: Distribution | None
    tpot_ms: Distribution | None
    e2e_ms: Distribution | None
    prompt_tokens: Distribution | None
    output_tokens: Distribution | None
    goodput_per_s: float
    n_good: int


def summarize(transcripts: Iterable[Transcript], slo: Slo | None = None) -> Summary:
    """Compute the figures of these requests."""
    found = tuple(transcripts)
    ok = [request for request in found if request.ok]
    cut = [request for request in found if request.failure is Failure.CUT]
    failed = [request for request in found if not (request.ok or request.failure is Failure.CUT)]
    seen = [*ok, *cut]
    started = [request for request in found if request.start_s]
    start_s = min((request.start_s for request in started), default=0)
    whole_s = max((request.end_s for request in started), default=0) - start_s
    per_s = 1 / whole_s if whole_s > 0 else 0.0
    streamed = [request for request in seen if len(request.arrivals_s) > 1]
    paced = [request for request in streamed if request.ok and request.n_output > 1]
    n_output = sum(request.n_output for request in seen)
    prompts = [request.counts.n_prompt for request in ok]
    n_prompt = sum(max(0, n) for n in prompts)
    good = [request for request in ok if slo.is_kept(request)] if slo else []
    return Summary(
        n_ok=len(ok),
        n_failed=len(failed),
        n_cut=len(cut),
        errors=Counter(map(error_kind, failed)),
        duration_s=whole_s,
        requests_per_s=len(ok) * per_s,
        inputs_per_s=sum(request.n_inputs for request in ok) * per_s,
        output_tokens_per_s=n_output * per_s,
        input_tokens_per_s=n_prompt * per_s,
        n_prompt=n_prompt,
        n_cached=_total(request.counts.n_cached for request in ok),
        n_computed=_total(request.counts.n_computed for request in ok),
        n_output=n_output,
        ttft_ms=distribution([request.ttft_s * 1e3 for request in seen if _has_first(request)]),
        itl_ms=distribution([gap * 1e3 for request in streamed for gap in request.gaps_s]),
        tpot_ms=distribution([request.tpot_s * 1e3 for request in paced]),
        e2e_ms=distribution([request.e2e_s * 1e3 for request in ok]),
        prompt_tokens=distribution([n for n in prompts if n >= 0]),
        output_tokens=distribution([request.n_output for request in ok if request.n_output]),
        goodput_per_s=len(good) * per_s,
        n_good=len(good),
    )


def _total(counts: Iterable[int]) -> int:
    """Add up the counts that are known; -1 if none is."""
    known = [count for count in counts if count >= 0]
    return sum(known) if known else -1


def _has_first(request: Transcript) -> bool:
    """Return whether the time of the first token is known; of a whole answer it is not."""
    return bool(request.arrivals_s) and request.streamed


def error_kind(request: Transcript) -> str:
    """Return the kind of a failure; of a refusal with its status."""
    if request.failure is Failure.REFUSED:
        return f"{Failure.REFUSED}_{request.status}"
    return str(request.failure)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Interpolate linearly between the two nearest ranks, as numpy does."""
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def distribution(values: Sequence[float]) -> Distribution | None:
    """Return the distribution of values; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    return Distribution(
        n=len(ordered),
        mean=sum(ordered) / len(ordered),
        min=ordered[0],
        p50=percentile(ordered, 0.50),
        p90=percentile(ordered, 0.90),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )


def as_dict(summary: Summary) -> dict[str, Any]:
    """Return the figures as JSON values."""
    return dataclasses.asdict(summary) | {"errors": dict(summary.errors)}
