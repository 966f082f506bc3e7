"""The ready workers in the order in which they would answer, so that a choice looks at a few. Pure.

A worker notes itself in `changes` whenever something about it changes (`Worker`), and gets its new
place before the next choice. So the order costs a few microseconds for each task, however many
workers there are.
"""

from collections.abc import Callable, Collection
from heapq import nsmallest
from itertools import islice

from gateway.pool.ordered_keys import OrderedKeys
from gateway.pool.routing.index.worker_sets import bits
from gateway.pool.workers.worker import Worker

PREFETCH, NO_CREDIT = 2, 4
"""Ranks from which a worker has only a prefetch credit, and none (`rank_of`)."""
_MAX_SEEN = 32
"""Workers of a large set that are compared, whatever the size of the pool."""


class ModelWorkers:
    """The ready workers of one model."""

    def __init__(self) -> None:
        self.bits: dict[str, int] = {}
        """Key of a worker -> its bit in the index."""
        self.ready = 0
        """Mask of all of them."""
        self.able = 0
        """Mask of those that have a credit."""
        self.crowded = 0
        """Mask of those in which tasks wait."""
        self.lending = 0
        """Mask of those with a free slot that only another gateway could give a credit for."""
        self._keys: dict[int, str] = {}
        """Place of a worker's bit -> its key."""
        self._by_load = OrderedKeys()
        self._by_slotless = OrderedKeys()
        self._sizes: dict[str, tuple[int, int, int]] = {}
        self.n_slots = self.n_free = self.n_lent = 0
        """Number of all slots, of free slots, and of slots that other gateways use."""

    def put(self, worker: Worker, bit: int, load: tuple[bool, float]) -> None:
        """Give a worker its place; `load` is whether it reads prompts, and its cost."""
        key, rank, n_slots, n_free = worker.key, rank_of(worker), worker.n_slots, worker.n_free
        self.bits[key] = bit
        self._keys[bit.bit_length()] = key
        self.ready |= bit
        self.able = self.able & ~bit | (bit if rank < NO_CREDIT else 0)
        self.crowded = self.crowded & ~bit | (bit if worker.is_crowded else 0)
        self.lending = self.lending & ~bit | (bit if n_free and worker.lacks_credit else 0)
        self._resize(key, (n_slots, n_free, min(worker.n_others, n_slots)))
        self._by_load.put(key, (rank, *load, -n_free, worker.n_ahead, worker.last_used))
        slotless = (
            not worker.takes_slotless,
            worker.is_sleeping,
            len(worker.tasks),
            worker.last_used,
        )
        self._by_slotless.put(key, slotless)

    def drop(self, key: str) -> None:
        """Take out a worker that is not ready."""
        bit = self.bits.pop(key)
        del self._keys[bit.bit_length()]
        self.ready &= ~bit
        self.able &= ~bit
        self.crowded &= ~bit
        self.lending &= ~bit
        self._resize(key, (0, 0, 0))
        del self._sizes[key]
        self._by_load.drop(key)
        self._by_slotless.drop(key)

    def _resize(self, key: str, size: tuple[int, int, int]) -> None:
        n_slots, n_free, n_lent = self._sizes.get(key, (0, 0, 0))
        self._sizes[key] = size
        self.n_slots += size[0] - n_slots
        self.n_free += size[1] - n_free
        self.n_lent += size[2] - n_lent

    def __len__(self) -> int:
        return len(self.bits)

    @property
    def n_own(self) -> int:
        """Slots that other gateways leave to this one."""
        return self.n_slots - self.n_lent

    def mask(self, keys: Collection[str]) -> int:
        """Return these workers as a mask; others than the model's are left out."""
        found = 0
        for key in keys:
            found |= self.bits.get(key, 0)
        return found

    @property
    def has_free(self) -> bool:
        """Whether any of them has a free slot and a credit."""
        first = next(iter(self._by_load), None)
        return first is not None and float(first[0]) < PREFETCH

    def keys(self, mask: int) -> list[str]:
        """Return the keys of the workers of a mask."""
        return [self._keys[bit.bit_length()] for bit in bits(mask)]

    def first(self, n: int, excluded: Collection[str]) -> list[str]:
        """Return the workers to be chosen first: with a credit, and of one rank.

        Up to `n` that read nothing, and as many that do.
        """
        found: list[str] = []
        rank = next((p[0] for p in self._by_load if p[-1] not in excluded), NO_CREDIT)
        if float(rank) >= NO_CREDIT:
            return found
        for is_reading in (False, True):
            n_found = 0
            for place in self._by_load.after((rank, is_reading)):
                if n_found == n or place[:2] != (rank, is_reading):
                    break
                if place[-1] not in excluded:
                    found.append(str(place[-1]))
                    n_found += 1
        return found

    def least_loaded(self, n: int, mask: int) -> list[str]:
        """Return `n` workers of a mask, those with the least load.

        Of a large mask only a few are compared: first the ones with the least load of all.
        """
        mask &= self.ready
        if mask.bit_count() > _MAX_SEEN:
            keys = (str(place[-1]) for place in islice(self._by_load, _MAX_SEEN))
            if found := list(islice((key for key in keys if self.bits[key] & mask), n)):
                return found
        members = islice(bits(mask), _MAX_SEEN)
        places = (self._by_load[self._keys[bit.bit_length()]] for bit in members)
        return [str(place[-1]) for place in nsmallest(n, places)]

    def without_credit(self, n: int) -> list[str]:
        """Return `n` workers that have no credit: those with a free slot, or if none has, others.

        Among both, those with the least load.
        """
        if self.lending:
            return self.least_loaded(n, self.lending)
        return [str(place[-1]) for place in islice(self._by_load.after((NO_CREDIT,)), n)]

    def for_slotless(self, excluded: Collection[str]) -> str | None:
        """Return the worker for a task that needs no slot; None if none takes one more."""
        place = next((p for p in self._by_slotless if p[-1] not in excluded), None)
        return None if place is None or place[0] else str(place[-1])


class LoadOrder:
    """All workers, by model and by name."""

    def __init__(self, load: Callable[[Worker, float], tuple[int, bool, float] | None]) -> None:
        """`load` tells the bit of a worker, whether it reads, and its cost; None if not known."""
        self.changes: dict[Worker, None] = {}
        """Workers that get a new place before the next choice."""
        self._load = load
        self._models: dict[str, ModelWorkers] = {}
        self._model_of: dict[str, str] = {}
        self._workers: dict[str, Worker] = {}
        self._named: dict[str, Worker] = {}

    def workers_of(self, model: str, now: float) -> ModelWorkers:
        """Return the ready workers of a model, all at their places."""
        if self.changes:
            self._refresh(now)
        return self.latest(model)

    def uneven(self, now: float) -> set[str]:
        """Return the models of which tasks wait in a worker while another has a free slot."""
        if self.changes:
            self._refresh(now)
        return {name for name, one in self._models.items() if one.crowded and one.has_free}

    def latest(self, model: str) -> ModelWorkers:
        """Return the workers of a model as they were at the latest choice among them."""
        return self._models.get(model) or ModelWorkers()

    def __getitem__(self, key: str) -> Worker:
        """Return a connected worker."""
        return self._workers[key]

    def touch(self, key: str) -> None:
        """Note that a worker has more or less to read than before."""
        if (worker := self._workers.get(key)) is not None:
            self.changes[worker] = None

    def named(self, name: str, now: float) -> Worker | None:
        """Return the connected worker of a name."""
        if self.changes:
            self._refresh(now)
        return self._named.get(name)

    def lost(self, worker: Worker) -> None:
        """Forget a worker that is not connected any more."""
        worker.leave()
        self.changes.pop(worker, None)
        self._drop(worker.key)
        self._workers.pop(worker.key, None)
        if self._named.get(worker.name) is worker:
            del self._named[worker.name]

    def _refresh(self, now: float) -> None:
        if self._workers:
            # One more in its turn: what others of the model have shown counts for those that have
            # shown nothing.
            key, worker = next(iter(self._workers.items()))
            self._workers[key] = self._workers.pop(key)
            self.changes[worker] = None
        changed = list(self.changes)
        self.changes.clear()
        for worker in changed:
            load = self._load(worker, now)
            if self._model_of.get(worker.key, worker.model) != worker.model:
                self._drop(worker.key)
            self._workers[worker.key] = self._named[worker.name] = worker
            if load is None or not worker.is_ready:
                self._drop(worker.key)
                continue
            self._model_of[worker.key] = worker.model
            bit, is_reading, cost = load
            workers = self._models.setdefault(worker.model, ModelWorkers())
            workers.put(worker, bit, (is_reading, cost))

    def _drop(self, key: str) -> None:
        model = self._model_of.pop(key, None)
        if model is not None:
            workers = self._models[model]
            workers.drop(key)
            if not workers:
                del self._models[model]


def rank_of(worker: Worker) -> int:
    """Rank a worker: with a free slot, or only with a prefetch credit; awake, or asleep."""
    if not worker.has_credit:
        return NO_CREDIT
    return PREFETCH * (not worker.n_free) + worker.is_sleeping
