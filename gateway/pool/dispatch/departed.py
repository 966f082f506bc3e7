"""Workers and models that have left the pool, for a limited time and up to a limited number. Pure.

A worker that comes back keeps its slot ids and its measured speed. The limits are for workers that
never come back: a fleet that grows and shrinks starts workers under new names, and so can a host
that was taken over.
"""

from collections import OrderedDict


class Departed:
    """Names of workers or models that are gone, ordered by when they left."""

    def __init__(self, most: int, kept_s: float) -> None:
        self._most = most
        self._kept_s = kept_s
        self._left_at: OrderedDict[str, float] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Departed {len(self._left_at)}>"

    def left(self, name: str, now: float) -> None:
        """Note that one has left."""
        self._left_at[name] = now
        self._left_at.move_to_end(name)

    def back(self, name: str) -> None:
        """Note that one of this name is here again."""
        self._left_at.pop(name, None)

    def due(self, now: float) -> list[str]:
        """Take out those to be forgotten: gone for too long, or too many have left since."""
        found: list[str] = []
        for name, left_at in self._left_at.items():
            if now - left_at < self._kept_s and len(self._left_at) - len(found) <= self._most:
                break
            found.append(name)
        for name in found:
            del self._left_at[name]
        return found
