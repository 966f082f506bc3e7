"""What became of requests, and how long clients waited, as lines that are printed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.soak.asking import Ending, Heard


@dataclass(slots=True)
class Tally:
    """What became of requests."""

    heard: list[Heard] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def counts(self) -> str:
        """Write the counts of all endings."""
        found = Counter(one.ending for one in self.heard)
        told = ", ".join(f"{found[one]} {one}" for one in Ending)
        return f"{len(self.heard)} requests: {told}"

    def tell(self) -> int:
        """Print it; returns the exit code."""
        for line in self.notes:
            print(line)
        print(self.counts())
        bad = [one for one in self.heard if one.ending is not Ending.ANSWERED]
        for one in bad[:10]:
            print(f"    {one.request.name} {one.ending}: {one.why[:300]}")
        return 1 if bad else 0


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that so great a share lies at or below; 0 without any."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def spread(name: str, values: Sequence[float]) -> str:
    """Write median, p99 and greatest in milliseconds."""
    told = " ".join(
        f"{n} {quantile(values, q) * 1e3:.0f}" for n, q in (("p50", 0.5), ("p99", 0.99))
    )
    return f"{name} in ms: {told} max {max(values, default=0.0) * 1e3:.0f} (of {len(values)})"
