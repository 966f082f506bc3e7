"""What must hold, row by row, and whether it does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from benchmarks.compare.servers import Side

Values = Mapping[tuple[str, Side, str], Sequence[float]]
"""Workload, side and figure to its values of all rounds."""


class By(Enum):
    """How a figure is judged."""

    RATIO = "ours / theirs"
    OURS = "ours alone"
    DIFFERENCE = "ours - theirs"


@dataclass(frozen=True, slots=True)
class Limit:
    """One row: a figure of a workload, and what it must be."""

    workload: str
    figure: str
    title: str
    at_least: float | None = None
    at_most: float | None = None
    by: By = By.RATIO


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row with its figures."""

    limit: Limit
    ours: float
    theirs: float
    value: float

    @property
    def is_met(self) -> bool:
        """Whether it holds."""
        low, high = self.limit.at_least, self.limit.at_most
        return (low is None or self.value >= low) and (high is None or self.value <= high)

    @property
    def must(self) -> str:
        """Write the limit."""
        if self.limit.at_least is not None:
            return f">= {self.limit.at_least:g}"
        return f"<= {self.limit.at_most:g}" if self.limit.at_most is not None else "-"


LIMITS = (
    Limit("one-stream", "decode_tokens_per_s", "decode tok/s", at_least=0.98),
    Limit("streams", "tokens_per_s", "tok/s", at_least=1.0),
    Limit("streams", "ttft_p50_ms", "TTFT p50 ms", at_most=0.6),
    Limit("streams", "ttft_p99_ms", "TTFT p99 ms", at_most=1.05),
    Limit("shared-600", "tokens_per_s", "tok/s", at_least=2),
    Limit("shared-600", "ttft_p99_ms", "TTFT p99 ms", at_most=0.25),
    Limit("shared-1500", "tokens_per_s", "tok/s", at_least=4),
    Limit(
        "shared-1500",
        "computed_per_new",
        "prompt tokens computed / distinct",
        at_most=1.05,
        by=By.OURS,
    ),
    Limit(
        "conversations",
        "computed_per_new",
        "prompt tokens computed / new",
        at_most=1.02,
        by=By.OURS,
    ),
    Limit("mixed", "itl_p99_ms", "ITL p99 ms", at_most=0.08),
    Limit("mixed", "ttft_p50_ms", "TTFT of the long prompt ms", at_most=1.6),
    Limit("long", "tokens_per_s", "tok/s"),
    Limit("long", "ttft_p50_ms", "TTFT p50 ms"),
    Limit("long", "itl_p99_ms", "ITL p99 ms"),
    Limit("unary", "requests_per_s", "requests/s", at_least=1.0),
    Limit("embeddings", "inputs_per_s", "sentences/s", at_least=1.0),
    Limit("memory", "pss_mb", "MB", at_most=150, by=By.DIFFERENCE),
)


def verdicts(values: Values) -> list[Verdict]:
    """Judge every row that was measured on both sides, by the median of all rounds.

    The two runs of a round follow each other: their ratio says more than that of two medians, for
    the machine may have been another from one round to the next.
    """
    found = []
    for limit in LIMITS:
        ours = values.get((limit.workload, Side.OURS, limit.figure))
        theirs = values.get((limit.workload, Side.THEIRS, limit.figure))
        if ours and theirs:
            pairs = zip(ours, theirs, strict=False)  # a broken comparison ends within a round
            value = median(_value(limit.by, *pair) for pair in pairs)
            found.append(Verdict(limit, median(ours), median(theirs), value))
    return found


def _value(by: By, ours: float, theirs: float) -> float:
    match by:
        case By.RATIO:
            return ours / theirs if theirs else float("nan")
        case By.OURS:
            return ours
        case By.DIFFERENCE:
            return ours - theirs
