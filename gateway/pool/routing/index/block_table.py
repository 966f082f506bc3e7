"""A table of blocks in few bytes: sorted arrays instead of a dictionary of objects. Pure.

An entry takes 21 bytes and the arrays' reserve, where a dictionary of numbers takes 100 and more.
Entries stand in segments in the order of their names: finding one is two bisections in C, adding
one moves a few kilobytes, also if a client has chosen the names.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

_MAX_ENTRIES, _MIN_ENTRIES = 1024, 128
"""Entries of a segment: beyond the first it is split, below the second joined to the one before."""
MAX_BRANCHES = 255
"""Largest count of branches; it stands for more, too."""


class Segment:
    """Entries of neighbouring names, one array for each field."""

    __slots__ = ("branches", "names", "parents", "sets")

    def __init__(self, names: "array[int]", parents: "array[int]", sets: "array[int]") -> None:
        self.names = names
        self.parents = parents
        """The block before; 0 at the beginning of a prompt."""
        self.sets = sets
        """Number of the set of workers that have the block."""
        self.branches = bytearray(len(names))
        """Blocks that go on from this one."""

    def __len__(self) -> int:
        return len(self.names)


class BlockEntry(NamedTuple):
    """Where an entry is, until the table changes."""

    segment: Segment
    at: int

    @property
    def set_id(self) -> int:
        """Number of the set of workers."""
        return self.segment.sets[self.at]


class BlockTable:
    """Blocks by their names, which are numbers of 64 bits."""

    def __init__(self) -> None:
        self._segments = [Segment(array("Q"), array("Q"), array("I"))]
        self._lows = [0]
        """Least name that a segment may have."""
        self._n = 0

    def __len__(self) -> int:
        return self._n

    @property
    def n_segments(self) -> int:
        """Number of the segments."""
        return len(self._segments)

    def set_of(self, name: int) -> int:
        """Return the number of a block's set of workers; 0 for an unknown block."""
        segment = self._segments[bisect_right(self._lows, name) - 1]
        names = segment.names
        at = bisect_left(names, name)
        return segment.sets[at] if at < len(names) and names[at] == name else 0

    def find(self, name: int) -> BlockEntry | None:
        """Find an entry."""
        segment = self._segments[bisect_right(self._lows, name) - 1]
        names = segment.names
        at = bisect_left(names, name)
        return BlockEntry(segment, at) if at < len(names) and names[at] == name else None

    def add(self, name: int, parent: int, set_id: int) -> int:
        """Add a block that is not in the table; return how many go on from its parent now."""
        number = bisect_right(self._lows, name) - 1
        segment = self._segments[number]
        at = bisect_left(segment.names, name)
        segment.names.insert(at, name)
        segment.parents.insert(at, parent)
        segment.sets.insert(at, set_id)
        segment.branches.insert(at, 0)
        self._n += 1
        if len(segment.names) > _MAX_ENTRIES:
            self._split(number)
        return self._branch(parent, 1)

    def branches(self, name: int) -> int:
        """Return how many blocks go on from a block."""
        place = self.find(name)
        return place.segment.branches[place.at] if place is not None else 0

    def remove(self, name: int) -> tuple[int, int]:
        """Remove a block; return its parent, and how many go on from that now."""
        number = bisect_right(self._lows, name) - 1
        segment = self._segments[number]
        at = bisect_left(segment.names, name)
        parent = segment.parents[at]
        for field in (segment.names, segment.parents, segment.sets, segment.branches):
            del field[at]
        self._n -= 1
        if number and len(segment) < _MIN_ENTRIES:
            self._join(number)
        return parent, self._branch(parent, -1)

    def _branch(self, parent: int, change: int) -> int:
        """Count a branch of a block; a count that has reached `MAX_BRANCHES` stays there."""
        place = self.find(parent) if parent else None
        if place is None:
            return 0
        n = place.segment.branches[place.at]
        if n < MAX_BRANCHES:
            n = place.segment.branches[place.at] = max(0, n + change)
        return n

    def with_sets(self, sets: frozenset[int], start: int, n: int) -> Iterator[int]:
        """Yield the blocks with one of these sets in `n` segments from the `start`-th on."""
        for segment in self._segments[start : start + n]:
            if not sets.isdisjoint(segment.sets):
                yield from [
                    name
                    for name, set_ in zip(segment.names, segment.sets, strict=True)
                    if set_ in sets
                ]

    def _join(self, number: int) -> None:
        """Add a segment to the one before it, if that has room."""
        left, right = self._segments[number - 1], self._segments[number]
        if len(left) + len(right) > _MAX_ENTRIES // 2:
            return
        left.names += right.names
        left.parents += right.parents
        left.sets += right.sets
        left.branches += right.branches
        del self._segments[number], self._lows[number]

    def _split(self, number: int) -> None:
        """Make two segments of one."""
        old = self._segments[number]
        half = len(old) // 2
        new = Segment(old.names[half:], old.parents[half:], old.sets[half:])
        new.branches = old.branches[half:]
        for field in (old.names, old.parents, old.sets, old.branches):
            del field[half:]
        self._segments.insert(number + 1, new)
        self._lows.insert(number + 1, new.names[0])
