"""Demand for credits: how many tasks wait, as reported to workers that several gateways share.

Pure. A worker is told with each frame that goes to it anyway, all of them when tasks of a model
begin or cease to wait, and what has changed otherwise at each tick. Where a slot is free somewhere,
only its worker is asked, so that no task is sent ahead to another one meanwhile.
"""

from collections.abc import Collection, Mapping

from gateway.pool.dispatch.workers import NOBODY, Waiting, Worker
from gateway.pool.routing.deferral import DeferralPolicy
from gateway.pool.routing.load_order import LoadOrder
from gateway.pool.tenants.task_queue import TaskQueue
from protocol.wire.sharing import Demand

_MOST_ASKED = 16
"""Workers that are asked at once when the first task waits; the others are at the next tick."""


class DemandNotes:
    """Records the demand that each worker has been sent, and finds what has to be sent."""

    def __init__(
        self,
        workers: Mapping[str, Worker],
        queue: TaskQueue,
        deferral: DeferralPolicy,
        order: LoadOrder,
    ) -> None:
        self._workers = workers
        self._queue = queue
        self._deferral = deferral
        self._order = order
        self._pressed: set[str] = set()
        """Models for which tasks were waiting at the last report."""
        self._asked: dict[str, dict[str, None]] = {}
        """By model: keys of the workers that were sent a demand."""

    def __repr__(self) -> str:
        return f"<DemandNotes pressed={sorted(self._pressed)}>"

    def of(self, worker: Worker, now: float) -> Demand | None:
        """Return what a worker does not know yet of what waits for its credits."""
        if not (worker.lacks_credit or worker.demanded[0]):
            return None
        return self._of(worker, now, is_slot_free=self._is_slot_free(worker.model, now))

    def _of(self, worker: Worker, now: float, *, is_slot_free: bool) -> Demand | None:
        waiting = self._waiting(worker, is_slot_free=is_slot_free)
        if waiting == worker.demanded:
            return None
        worker.demanded = waiting
        n, since = waiting
        asked = self._asked.setdefault(worker.model, {})
        if n:
            asked[worker.key] = None
        else:
            asked.pop(worker.key, None)
        return Demand(waiting=n, oldest_s=max(0.0, now - since) if n else 0.0)

    def crossed(self, now: float) -> list[tuple[str, Demand]]:
        """Find what to say where tasks of a model have begun or ceased to wait."""
        pressed = self._queue.contested()
        changed, self._pressed = pressed ^ self._pressed, pressed
        found: list[tuple[str, Demand]] = []
        for model in changed:
            if model in pressed:
                keys: Collection[str] = self._order.of(model, now).without_credit(_MOST_ASKED)
            else:
                keys = list(self._asked.pop(model, ()))[:_MOST_ASKED]
            found += self._told(keys, now)
        return found

    def changed(self, now: float) -> list[tuple[str, Demand]]:
        """Find all that workers do not know yet."""
        return self._told(self._workers, now)

    def _told(self, keys: Collection[str], now: float) -> list[tuple[str, Demand]]:
        found: list[tuple[str, Demand]] = []
        for key in keys:
            worker = self._workers.get(key)
            demand = self.of(worker, now) if worker is not None and worker.is_shared else None
            if demand is not None:
                found.append((key, demand))
        return found

    def _waiting(self, worker: Worker, *, is_slot_free: bool) -> Waiting:
        """Count the tasks that would go to a worker if it gave a credit.

        With `is_slot_free` some worker that could be asked has a free slot.
        """
        if not worker.lacks_credit:
            return NOBODY
        n, since = self._queue.waiting(worker.model)
        n -= self._deferral.n_kept(worker)
        if n > 0 and not worker.n_free and is_slot_free:
            n = 0
        for task in self._queue.bound_to(worker.name):
            if worker.n_free and task.spec.slot not in worker.slots:
                since = min(since, task.waits_since) if n > 0 else task.waits_since
                n = max(0, n) + 1
        return (n, since) if n > 0 else NOBODY

    def _is_slot_free(self, model: str, now: float) -> bool:
        return bool(self._queue.waiting(model)[0] and self._order.of(model, now).lending)
