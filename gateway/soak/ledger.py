"""Every request accounted for: one row of a fault's table, and how it is printed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gateway.soak.asking import Ending, RequestOutcome

HEADINGS = ("sent", "answered", "refused", "lost", "doubled", "wrong text", "leaked", "longest gap")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow:
    """What became of all requests around one fault."""

    name: str
    what: str
    counts: Counter[Ending] = field(default_factory=Counter)
    leaks: tuple[str, ...] = ()
    longest_gap_s: float = 0.0
    violations: tuple[str, ...] = ()
    """Expectations of the fault that were not met."""
    examples: tuple[str, ...] = ()
    """Some of the requests that were not answered rightly."""

    @property
    def n_sent(self) -> int:
        """Requests that were sent."""
        return sum(self.counts.values())

    def is_well(self) -> bool:
        """Whether every request was answered rightly, and nothing leaked."""
        n_bad = self.n_sent - self.counts[Ending.ANSWERED]
        return not (n_bad or self.leaks or self.violations)

    def cells(self) -> list[str]:
        """Return the row as texts, in the order of `HEADINGS`."""
        order = (Ending.ANSWERED, Ending.REFUSED, Ending.LOST, Ending.DOUBLED, Ending.WRONG)
        counts = [str(self.counts[ending]) for ending in order]
        return [str(self.n_sent), *counts, str(len(self.leaks)), f"{self.longest_gap_s:.2f} s"]

    def problems(self) -> list[str]:
        """Return what is wrong, in words."""
        return [*self.violations, *(f"leaked: {leak}" for leak in self.leaks), *self.examples]


def row_of(
    name: str,
    what: str,
    outcomes: Iterable[RequestOutcome],
    leaks: Sequence[str],
    violations: Sequence[str] = (),
) -> FaultRow:
    """Count how the requests ended."""
    every = list(outcomes)
    bad = [outcome for outcome in every if outcome.ending is not Ending.ANSWERED]
    return FaultRow(
        name=name,
        what=what,
        counts=Counter(outcome.ending for outcome in every),
        leaks=tuple(leaks),
        longest_gap_s=max((outcome.longest_gap_s for outcome in every), default=0.0),
        violations=tuple(violations),
        examples=tuple(
            f"{outcome.request.name} {outcome.ending}: {outcome.why}" for outcome in bad[:6]
        ),
    )


def table(rows: Iterable[FaultRow]) -> str:
    """Write rows as a table of Markdown."""
    lines = [
        "| fault | what | " + " | ".join(HEADINGS) + " |",
        "|---|---|" + "---|" * len(HEADINGS),
    ]
    lines += [f"| {row.name} | {row.what} | {' | '.join(row.cells())} |" for row in rows]
    return "\n".join(lines) + "\n"
