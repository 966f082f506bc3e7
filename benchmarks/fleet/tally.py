"""What became of requests, and how long clients waited, as lines that are printed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.bench.summary import distribution
from gateway.soak.asking import Ending, RequestOutcome


@dataclass(slots=True)
class Tally:
    """What became of requests."""

    outcomes: list[RequestOutcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def counts(self) -> str:
        """Write the counts of all endings."""
        found = Counter(one.ending for one in self.outcomes)
        counts = ", ".join(f"{found[one]} {one}" for one in Ending)
        return f"{len(self.outcomes)} requests: {counts}"

    def show(self) -> int:
        """Print it; returns the exit code."""
        for line in self.notes:
            print(line)
        print(self.counts())
        bad = [one for one in self.outcomes if one.ending is not Ending.ANSWERED]
        for one in bad[:10]:
            print(f"    {one.request.name} {one.ending}: {one.why[:300]}")
        return 1 if bad else 0


def latencies(name: str, seconds: Sequence[float]) -> str:
    """Write median, p99 and maximum in milliseconds."""
    ms = distribution([one * 1e3 for one in seconds])
    if ms is None:
        return f"{name}: none"
    return f"{name} in ms: p50 {ms.p50:.0f} p99 {ms.p99:.0f} max {ms.max:.0f} (of {ms.n})"
