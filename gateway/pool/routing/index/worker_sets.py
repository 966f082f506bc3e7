"""Sets of workers as numbers: thousands of blocks are held by the same few sets. Pure.

A worker is a bit, a set a mask of bits. Each mask in use is kept once and counted.
"""

from collections.abc import Iterator

_EMPTY = 0
"""Number of the set without workers."""


class WorkerSets:
    """Masks by number; number 0 is the empty set and never counted."""

    def __init__(self) -> None:
        self._masks = [0]
        self._counts = [0]
        self._numbers: dict[int, int] = {0: _EMPTY}
        self._unused: list[int] = []

    def mask(self, number: int) -> int:
        """Return the workers of a set."""
        return self._masks[number]

    def take(self, mask: int) -> int:
        """Count one more block that a set of workers has; return the set's number."""
        number = self._numbers.get(mask)
        if number is None:
            number = self._new(mask)
        self._counts[number] += 1
        return number

    def drop(self, number: int) -> None:
        """Count one block less; a set without any is forgotten."""
        self._counts[number] -= 1
        if number != _EMPTY and not self._counts[number]:
            mask = self._masks[number]
            if self._numbers.get(mask) == number:
                del self._numbers[mask]
            self._masks[number] = 0
            self._unused.append(number)

    def leave(self, bit: int) -> frozenset[int]:
        """Take a worker out of all sets; return the numbers of those that are empty now.

        Two numbers may have the same mask afterwards: blocks keep theirs.
        """
        empty = []
        for number, mask in enumerate(self._masks):
            if mask & bit:
                if self._numbers.get(mask) == number:
                    del self._numbers[mask]
                self._masks[number] = mask & ~bit
                self._numbers.setdefault(mask & ~bit, number)
                if not mask & ~bit:
                    empty.append(number)
        return frozenset(empty)

    def _new(self, mask: int) -> int:
        if self._unused:
            number = self._unused.pop()
            self._masks[number] = mask
        else:
            number = len(self._masks)
            self._masks.append(mask)
            self._counts.append(0)
        self._numbers[mask] = number
        return number


def bits(mask: int) -> Iterator[int]:
    """Yield the lowest bit of a mask as a mask of its own, then the next."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
