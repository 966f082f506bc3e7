"""Who can work: the connected workers with their credits, and the pool-wide slot numbers.

Pure bookkeeping for the dispatcher. A credit is a slot (or a place for a prefetched task) as the
gateway counts it: taken when a task is assigned, returned by its terminal message and nothing else.
"""

import re
from collections.abc import Iterable
from enum import StrEnum

from gateway.pool.task import PoolTask
from protocol.wire.facts import ModelCard

LeaseKey = tuple[int, int]
"""Task id and attempt: a late terminal message returns the credit of its own attempt only."""


class WorkerState(StrEnum):
    """What a connected worker can do."""

    LOADING = "loading"
    READY = "ready"
    LEAVING = "leaving"
    """It drains: it finishes what it has and goes."""


_NEXT: dict[WorkerState, frozenset[WorkerState]] = {
    WorkerState.LOADING: frozenset({WorkerState.READY, WorkerState.LEAVING}),
    WorkerState.READY: frozenset({WorkerState.LEAVING}),
    WorkerState.LEAVING: frozenset(),
}


_MIN_ASIDES = 16
"""Tasks that need no slot and are sent to a worker at once; with more slots, four each."""


class Worker:
    """One connection of one worker."""

    __slots__ = (
        *("asides", "cancelled", "card", "is_sleeping", "key", "last_used", "leases"),
        *("model", "name", "state", "tasks"),
    )

    def __init__(self, key: str, name: str, model: str) -> None:
        self.key = key
        self.name = name
        self.model = model
        self.state = WorkerState.LOADING
        self.card: ModelCard | None = None
        self.is_sleeping = False
        """Its model is not loaded: the next task wakes it and waits."""
        self.leases: dict[LeaseKey, int] = {}
        """Credits taken, with the slot each runs in, -1 until that is known."""
        self.asides: set[LeaseKey] = set()
        """Tasks that need no slot and are not answered, whether or not somebody waits for them."""
        self.tasks: dict[int, None] = {}
        """Live tasks here, in order of assignment; those without a credit too."""
        self.cancelled: dict[LeaseKey, PoolTask] = {}
        """Given up and not ended yet: their terminal messages say what they cost."""
        self.last_used = 0

    def __repr__(self) -> str:
        return (
            f"<Worker {self.name} {self.state} model={self.model} "
            f"leases={len(self.leases)}/{self.n_slots}+{self.n_prefetch}>"
        )

    @property
    def n_slots(self) -> int:
        """Tasks that run here at once."""
        return self.card.n_slots if self.card is not None else 0

    @property
    def n_prefetch(self) -> int:
        """Tasks that may be sent beyond the slots."""
        return self.card.n_prefetch if self.card is not None else 0

    @property
    def is_ready(self) -> bool:
        """Whether it takes new tasks."""
        return self.state is WorkerState.READY

    @property
    def n_busy(self) -> int:
        """Slots in use as far as the gateway knows."""
        return min(len(self.leases), self.n_slots)

    @property
    def n_ahead(self) -> int:
        """Tasks that were sent ahead and wait here for a slot."""
        return len(self.leases) - self.n_busy

    @property
    def n_free(self) -> int:
        """Free slots."""
        return self.n_slots - self.n_busy

    @property
    def has_credit(self) -> bool:
        """Whether one more task may be sent."""
        return self.is_ready and len(self.leases) < self.n_slots + self.n_prefetch

    @property
    def takes_aside(self) -> bool:
        """Whether one more task may be sent that needs no slot."""
        return self.is_ready and len(self.asides) < max(_MIN_ASIDES, 4 * self.n_slots)

    def can_run_in(self, slot: int) -> bool:
        """Whether this slot is free as far as is known; pinned tasks are not prefetched."""
        return self.is_ready and self.n_free > 0 and slot not in self.leases.values()

    def turn(self, state: WorkerState) -> None:
        """Change the state; only the transitions of the table are possible."""
        assert state in _NEXT[self.state], f"{self!r} cannot become {state}"
        self.state = state


def least_asked(workers: Iterable[Worker]) -> Worker | None:
    """Choose the worker for a task that needs no slot."""
    ready = [worker for worker in workers if worker.is_ready]
    return min(ready, key=lambda w: (w.is_sleeping, len(w.tasks), w.last_used), default=None)


class SlotMap:
    """Pool-wide slot ids: a range for each worker that ever was ready, in the order of their names.

    They follow from the names alone, so that they are the same at every gateway and after every
    restart, in whatever order the workers come.
    """

    def __init__(self) -> None:
        self._ranges: dict[str, range] = {}
        """In the order of their names."""
        self._models: dict[str, str] = {}

    def __repr__(self) -> str:
        ranges = " ".join(f"{n}:{r.start}-{r.stop - 1}" for n, r in self._ranges.items())
        return f"<SlotMap {ranges}>".replace(" >", ">")

    def n_slots(self, model: str) -> int:
        """Slots of all workers of a model that ever were ready."""
        return sum(len(ids) for name, ids in self._ranges.items() if self._models[name] == model)

    def reserve(self, name: str, card: ModelCard) -> None:
        """Give a worker its range; those of later names move if it is new or has changed."""
        sizes = {one: len(ids) for one, ids in self._ranges.items()} | {name: card.n_slots}
        self._models[name] = card.name
        self._ranges.clear()
        start = 0
        for one in sorted(sizes, key=_natural):
            self._ranges[one] = range(start, start + sizes[one])
            start += sizes[one]

    def base(self, name: str) -> int:
        """Return the id of the worker's slot 0."""
        return self._ranges[name].start

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
    """Order names with numbers as people do: w-2 before w-10."""
    parts = re.split(r"([0-9]+)", name)
    digits = [part.lstrip("0") for part in parts]
    ranks = [(len(digits[i]), digits[i]) if i % 2 else (-1, part) for i, part in enumerate(parts)]
    return ranks, name
