"""The slot ids of the whole pool. Pure."""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from protocol.wire.facts import ModelCard


class ExpectedWorker(NamedTuple):
    """A worker that is configured, whether it runs or not."""

    name: str
    model: str
    n_slots: int
    aliases: tuple[str, ...] = ()


class SlotMap:
    """Slot ids of the pool: a range for each worker, in the order of names.

    It has those that ever were ready, and those that are configured on this host. The ids follow
    from the names alone, so that they are the same at every gateway and after every restart, in
    whatever order the workers connect.
    """

    def __init__(self) -> None:
        self._workers: dict[str, ExpectedWorker] = {}
        """In the order of their names."""
        self._ranges: dict[str, range] = {}
        self._by_model: dict[str, _ModelSlots] = {}
        self._expected: set[str] = set()
        """Names of workers that are configured and were not ready yet."""
        self._configured: set[str] = set()

    def __repr__(self) -> str:
        ranges = " ".join(f"{n}:{r.start}-{r.stop - 1}" for n, r in self._ranges.items())
        return f"<SlotMap {ranges}>".replace(" >", ">")

    def n_slots(self, model: str) -> int:
        """Slots of all workers of a model that have ids."""
        slots = self._by_model.get(model)
        return slots.n if slots is not None else 0

    def expected_models(self, name: str) -> set[str]:
        """Return the models of this name or alias of which a worker here was not ready yet."""
        workers = map(self._workers.__getitem__, self._expected)
        return {one.model for one in workers if name == one.model or name in one.aliases}

    def expect(self, workers: Sequence[ExpectedWorker]) -> None:
        """Keep ranges for workers that are configured, as long as they are down."""
        self._configured |= {worker.name for worker in workers}
        self._expected |= {worker.name for worker in workers} - self._workers.keys()
        new = {worker.name: worker for worker in workers if worker.name in self._expected}
        self._arrange(self._workers | new)

    def reserve(self, name: str, card: ModelCard) -> None:
        """Give a worker its range; those of later names move if it is new or has changed."""
        self._expected.discard(name)
        replaced = name.partition("~")[0]  # a rolling change puts w~2 in the place of w
        if replaced in self._expected:
            self.forget(replaced)
        self._arrange(self._workers | {name: ExpectedWorker(name, card.name, card.n_slots)})

    def _arrange(self, workers: Mapping[str, ExpectedWorker]) -> None:
        if workers == self._workers:
            return
        self._workers = {name: workers[name] for name in sorted(workers, key=_natural)}
        self._ranges.clear()
        self._by_model.clear()
        start = 0
        for name, model, n_slots, _ in self._workers.values():
            self._ranges[name] = ids = range(start, start + n_slots)
            if n_slots:
                self._by_model.setdefault(model, _ModelSlots()).add(name, ids)
            start = ids.stop

    def is_configured(self, name: str) -> bool:
        """Whether a worker is configured on this host, so that it keeps its range."""
        return name in self._configured

    def forget(self, name: str) -> None:
        """Free the range of a worker that will not come back."""
        self._configured.discard(name)
        self._expected.discard(name)
        self._arrange({other: worker for other, worker in self._workers.items() if other != name})

    def base(self, name: str) -> int:
        """Return the id of the worker's slot 0."""
        return self._ranges[name].start

    def global_id(self, name: str, slot: int) -> int:
        """Return the id of a worker's own slot number; -1 for -1, or for a worker without ids."""
        ids = self._ranges.get(name)
        return ids.start + slot if ids is not None and slot >= 0 else -1

    def owner(self, slot_id: int) -> tuple[str, str, int] | None:
        """Find the worker of an id: its name, its model, and its own number of the slot."""
        for model, slots in self._by_model.items():
            if (found := slots.find(slot_id)) is not None:
                return found[0], model, found[1]
        return None

    def model_of(self, slot_id: int) -> str:
        """Return the model of a slot; empty if there is no such slot."""
        owner = self.owner(slot_id)
        return owner[1] if owner is not None else ""

    def numbered(self, model: str, number: int) -> tuple[str, int] | None:
        """Find the worker and its own slot number for an id, or for a number within the model."""
        slots = self._by_model.get(model)
        if slots is None:
            return None
        return slots.find(number) or (slots.place(number) if number < slots.n else None)

    def locate(self, model: str, slot_id: int) -> tuple[str, int]:
        """Find the worker and its own slot number for an id; ids beyond the model's slots wrap."""
        slots = self._by_model.get(model)
        if slots is None:
            return "", -1
        return slots.find(slot_id) or slots.place(slot_id % slots.n)


class _ModelSlots:
    """The slots of one model: a range of ids for each worker, in rising order."""

    def __init__(self) -> None:
        self.n = 0
        self._workers: list[tuple[str, range]] = []
        self._starts: list[int] = []
        """First id of each worker."""
        self._sums: list[int] = []
        """Slots of all workers before it."""

    def add(self, name: str, ids: range) -> None:
        """Add the worker that comes next in the order of names."""
        self._workers.append((name, ids))
        self._starts.append(ids.start)
        self._sums.append(self.n)
        self.n += len(ids)

    def find(self, slot_id: int) -> tuple[str, int] | None:
        """Return worker and own number of an id; None if it belongs to another model."""
        i = bisect_right(self._starts, slot_id) - 1
        name, ids = self._workers[max(0, i)]
        return (name, slot_id - ids.start) if slot_id in ids else None

    def place(self, n: int) -> tuple[str, int]:
        """Return worker and own number of the model's slot number `n`."""
        i = bisect_right(self._sums, n) - 1
        return self._workers[i][0], n - self._sums[i]


@lru_cache(maxsize=4096)
def _natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return the sort key that puts w-2 before w-10."""
    parts = re.split(r"([0-9]+)", name)
    digits = [part.lstrip("0") for part in parts]
    ranks = [(len(digits[i]), digits[i]) if i % 2 else (-1, part) for i, part in enumerate(parts)]
    return ranks, name
