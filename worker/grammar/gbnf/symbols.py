"""A grammar after reading: rules as flat arrays, so that a place in it is one number."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

_LAST = 2**32
"""No character has this number."""


class SymbolKind(IntEnum):
    """Kind of symbol."""

    END = 0
    """End of the alternative."""
    RULE = 1
    CHARS = 2
    """One character out of a set."""
    TOKEN = 3
    """One certain token."""
    OTHER_TOKEN = 4
    """Any token but one."""


class Symbol(NamedTuple):
    """One element of an alternative; `value` numbers a rule, a set of characters or a token."""

    kind: SymbolKind
    value: int


class CharSet(NamedTuple):
    """Characters by inclusive ranges of code points; all others if `is_negated`."""

    ranges: tuple[tuple[int, int], ...]
    """Sorted; no two meet."""
    is_negated: bool = False

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]], *, is_negated: bool = False) -> "CharSet":
        """Make a set of ranges in any order."""
        merged: list[tuple[int, int]] = []
        for low, high in sorted(ranges):
            if high < low:
                continue
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(merged[-1][1], high)
            else:
                merged.append((low, high))
        return cls(tuple(merged), is_negated)

    def holds(self, char: int) -> bool:
        """Return whether a character belongs to the set."""
        return self.covers(char, char) is True

    def covers(self, low: int, high: int) -> bool | None:
        """Return whether all characters of a range belong to the set, or none; None is some."""
        i = bisect_right(self.ranges, (low, _LAST)) - 1
        if i >= 0 and self.ranges[i][1] >= high:
            return not self.is_negated
        begins_inside = i >= 0 and self.ranges[i][1] >= low
        goes_on = i + 1 < len(self.ranges) and self.ranges[i + 1][0] <= high
        return None if begins_inside or goes_on else self.is_negated


@dataclass(slots=True)
class Grammar:
    """Rules with their alternatives; places are indices of `kinds` and `values`."""

    kinds: "array[int]" = field(default_factory=lambda: array("b"))
    values: "array[int]" = field(default_factory=lambda: array("q"))
    alternatives: list[list[int]] = field(default_factory=list)
    """Of each rule: where they begin."""
    sets: list[CharSet] = field(default_factory=list)
    root: int = 0

    def add(self, alternatives: Sequence[Sequence[Symbol]]) -> None:
        """Add the next rule."""
        starts = []
        for symbols in alternatives:
            starts.append(len(self.kinds))
            self.kinds.extend([symbol.kind for symbol in symbols])
            self.values.extend([symbol.value for symbol in symbols])
            self.kinds.append(SymbolKind.END)
            self.values.append(0)
        self.alternatives.append(starts)


class GrammarError(ValueError):
    """The text is not a valid grammar, or too large; the message has the reason and the place."""
