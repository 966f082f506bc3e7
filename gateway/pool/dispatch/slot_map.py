"""The slot ids of the whole pool. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from protocol.wire.facts import ModelCard


class ExpectedWorker(NamedTuple):
    """A worker that is configured, whether it runs or not."""

    name: str
    model: str
    n_slots: int


class SlotMap:
    """Slot ids of the pool: a range for each worker, in the order of names.

    It has those that ever were ready, and those that are configured on this host. The ids follow
    from the names alone, so that they are the same at every gateway and after every restart, in
    whatever order the workers connect.
    """

    def __init__(self) -> None:
        self._ranges: dict[str, range] = {}
        """In the order of their names."""
        self._models: dict[str, str] = {}
        self._n_slots: dict[str, int] = {}
        self._expected: set[str] = set()
        """Names of workers that are configured and were not ready yet."""

    def __repr__(self) -> str:
        ranges = " ".join(f"{n}:{r.start}-{r.stop - 1}" for n, r in self._ranges.items())
        return f"<SlotMap {ranges}>".replace(" >", ">")

    def n_slots(self, model: str) -> int:
        """Slots of all workers of a model that have ids."""
        return self._n_slots.get(model, 0)

    def expect(self, workers: Sequence[ExpectedWorker]) -> None:
        """Keep ranges for workers that are configured, as long as they are down."""
        self._expected |= {one.name for one in workers} - self._ranges.keys()
        new = {one.name: one for one in workers if one.name in self._expected}
        self._models |= {name: one.model for name, one in new.items()}
        sizes = {one: len(ids) for one, ids in self._ranges.items()}
        self._arrange(sizes | {name: one.n_slots for name, one in new.items()})

    def reserve(self, name: str, card: ModelCard) -> None:
        """Give a worker its range; those of later names move if it is new or has changed."""
        self._expected.discard(name)
        replaced = name.partition("~")[0]  # a rolling change puts w~2 in the place of w
        if replaced in self._expected:
            self.forget(replaced)
        sizes = {one: len(ids) for one, ids in self._ranges.items()} | {name: card.n_slots}
        self._models[name] = card.name
        self._arrange(sizes)

    def _arrange(self, sizes: Mapping[str, int]) -> None:
        self._ranges.clear()
        start = 0
        for one in sorted(sizes, key=_natural):
            self._ranges[one] = range(start, start + sizes[one])
            start += sizes[one]
        self._n_slots.clear()
        for one, size in sizes.items():
            self._n_slots[self._models[one]] = self._n_slots.get(self._models[one], 0) + size

    def forget(self, name: str) -> None:
        """Free the range of a worker that will not come back."""
        self._expected.discard(name)
        if self._ranges.pop(name, None) is not None:
            del self._models[name]
            self._arrange({one: len(ids) for one, ids in self._ranges.items()})

    def base(self, name: str) -> int:
        """Return the id of the worker's slot 0."""
        return self._ranges[name].start

    def global_id(self, name: str, slot: int) -> int:
        """Return the id of a worker's own slot number; -1 for -1, or for a worker without ids."""
        ids = self._ranges.get(name)
        return ids.start + slot if ids is not None and slot >= 0 else -1

    def owner(self, slot_id: int) -> tuple[str, str, int] | None:
        """Find the worker of an id: its name, its model, and its own number of the slot."""
        for name, ids in self._ranges.items():
            if slot_id in ids:
                return name, self._models[name], slot_id - ids.start
        return None

    def locate(self, model: str, slot_id: int) -> tuple[str, int]:
        """Find the worker and its own slot number for an id; ids beyond the model's slots wrap."""
        own = [(n, r) for n, r in self._ranges.items() if self._models[n] == model]
        for name, ids in own:
            if slot_id in ids:
                return name, slot_id - ids.start
        places = [(name, i) for name, ids in own for i in range(len(ids))]
        return places[slot_id % len(places)] if places else ("", -1)


def _natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return the sort key that puts w-2 before w-10."""
    parts = re.split(r"([0-9]+)", name)
    digits = [part.lstrip("0") for part in parts]
    ranks = [(len(digits[i]), digits[i]) if i % 2 else (-1, part) for i, part in enumerate(parts)]
    return ranks, name
