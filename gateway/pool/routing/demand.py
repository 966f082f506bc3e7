"""Demand for credits: how many tasks wait, as reported to workers that several gateways share.

Pure. Every frame to a worker carries its demand. All workers of a model are sent one when its tasks
begin or cease to wait, and those whose demand has changed at each tick. While a worker has a free
slot, only that worker is asked for credits, so that no task is sent ahead to another one.
"""

from collections.abc import Collection, Mapping

from gateway.pool.routing.deferral import DeferralPolicy
from gateway.pool.routing.load_order import LoadOrder
from gateway.pool.tenants.task_queue import TaskQueue
from gateway.pool.workers.worker import NOBODY, Waiting, Worker
from protocol.wire.sharing import Demand

_MAX_ASKED = 16
"""Maximum workers that are asked as soon as a task waits; the others are asked at the next tick."""


class DemandReports:
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

    def of(self, worker: Worker, now: float) -> Demand | None:
        """Return the demand for a worker's credits, or None if it was sent the same before."""
        if not (worker.lacks_credit or worker.demanded[0]):
            return None
        waiting = self._waiting(worker, is_slot_free=self._is_slot_free(worker.model, now))
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
        """Return the demands to send for the models whose tasks have started or ceased to wait."""
        pressed = self._queue.contested()
        changed, self._pressed = pressed ^ self._pressed, pressed
        found: list[tuple[str, Demand]] = []
        for model in changed:
            if model in pressed:
                keys: Collection[str] = self._order.workers_of(model, now).without_credit(
                    _MAX_ASKED
                )
            else:
                keys = list(self._asked.pop(model, ()))[:_MAX_ASKED]
            found += self._demands(keys, now)
        return found

    def changed(self, now: float) -> list[tuple[str, Demand]]:
        """Return the demands that workers have not been sent yet."""
        return self._demands(self._workers, now)

    def _demands(self, keys: Collection[str], now: float) -> list[tuple[str, Demand]]:
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
        for slot, tasks in self._queue.bound_to(worker.name).items():
            if worker.has_place_in(slot):
                first = next(iter(tasks)).waits_since
                since = min(since, first) if n > 0 else first
                n = max(0, n) + len(tasks)
        return (n, since) if n > 0 else NOBODY

    def _is_slot_free(self, model: str, now: float) -> bool:
        return bool(self._queue.waiting(model)[0] and self._order.workers_of(model, now).lending)
