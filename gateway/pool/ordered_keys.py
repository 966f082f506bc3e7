"""Keys in the order of a value that changes: the first few cost the same, however many there are.

Pure.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

Place = tuple[float | str, ...]
"""What keys are ordered by; the key itself is last, and decides between equals."""


class OrderedKeys:
    """Each key has one place."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._of: dict[str, Place] = {}

    def put(self, key: str, value: Place) -> None:
        """Give a key a place, or another one."""
        place = (*value, key)
        if self._of.get(key) == place:
            return
        self.drop(key)
        self._of[key] = place
        insort(self._places, place)

    def drop(self, key: str) -> None:
        """Take a key out."""
        place = self._of.pop(key, None)
        if place is not None:
            del self._places[bisect_left(self._places, place)]

    def __getitem__(self, key: str) -> Place:
        """Return the place of a key."""
        return self._of[key]

    def __iter__(self) -> Iterator[Place]:
        """Go through the places, the first first."""
        return iter(self._places)

    def after(self, value: Place) -> Iterator[Place]:
        """Go through the places from this value on."""
        places = self._places
        for at in range(bisect_left(places, value), len(places)):
            yield places[at]
