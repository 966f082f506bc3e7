"""What the normal keys measured in one situation, and how it is printed."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from benchmarks.fairness.flood import TimedAnswer
from benchmarks.processes import CoreUse
from gateway.bench.summary import percentile


@dataclass(slots=True)
class Results:
    """Answers, tokens and refusals of all turns in one situation."""

    answers: list[TimedAnswer] = field(default_factory=list)
    tokens: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    parts: list[Mapping[str, float]] = field(default_factory=list)
    """For each answer, the parts of the time to its first token, in seconds."""
    seconds: float = 0.0
    uses: dict[str, CoreUse] = field(default_factory=dict)
    """Use of the cores by each process."""

    def quantile_ms(self, share: float) -> float:
        """Return a quantile of the times to the first token."""
        return quantile([one.first_s for one in self.answers], share) * 1e3

    def add_uses(self, before: Mapping[str, CoreUse], after: Mapping[str, CoreUse]) -> None:
        """Add the use of cores in one turn; a process that began in it is not in `before`."""
        for name, use in after.items():
            since = use.since(before.get(name, CoreUse()))
            self.uses[name] = self.uses.get(name, CoreUse()).plus(since)

    def show(self, name: str) -> None:
        """Print all of it."""
        refused = ", ".join(f"{n} of {who}" for who, n in self.refused.items() if n) or "none"
        print(
            f"{name:16}  TTFT of the nine, ms: p50 {self.quantile_ms(0.5):.0f}, "
            f"p99 {self.quantile_ms(0.99):.0f} ({len(self.answers)} answers); 429: {refused}"
        )
        if self.parts:
            self._explain()
        shares = ", ".join(
            f"{name} {use.ran_s / self.seconds:.0%} + {use.waited_s / self.seconds:.0%}"
            for name, use in self.uses.items()
        )
        print(f"    computed + waited for a core: {shares}")

    def _explain(self) -> None:
        """Print the parts of the time to the first token, of all answers and of the slowest."""
        slow = sorted(self.parts, key=lambda one: one["first token"])
        slow = slow[-max(1, len(slow) // 50) :]
        for name, parts in (("all", self.parts), ("slowest 2 %", slow)):
            means = (f"{key} {fmean(one[key] for one in parts) * 1e3:.1f}" for key in parts[0])
            print(f"    {name}, mean ms: {', '.join(means)}")


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile; not a number without values."""
    return percentile(sorted(values), share) if values else math.nan
