"""Tasks that wait though they could go: for the worker that has their prompt in its cache.

Pure. Two kinds of waiting, both bounded for each task. While slots are scarce a task lets later
ones of its tenant go first, which costs nobody anything; while a slot is free a task is kept from
it only if waiting is predicted to be much faster.
"""

import math
from collections.abc import Collection, Mapping, Sequence

from gateway.pool.routing.policy import RouteChoice, RoutingPolicy
from gateway.pool.task import PoolTask
from gateway.pool.workers import Worker

_QUEUE_SHARE = 0.25
"""Of its time in the queue, how long a task may wait so."""
_DEFERRED_S = 1.0
"""How long a task lets others go first if that saves little; in this time a slot becomes free."""


class DeferralPolicy:
    """Who waits for whom."""

    def __init__(self, router: RoutingPolicy, *, timeout_s: float) -> None:
        self._router = router
        self._limit_s = _QUEUE_SHARE * timeout_s
        self._kept: dict[int, PoolTask] = {}

    def __repr__(self) -> str:
        return f"<DeferralPolicy kept={sorted(self._kept)}>"

    def kept(self, task_id: int) -> PoolTask | None:
        """Return a task that is kept for one worker though others are free."""
        return self._kept.get(task_id)

    def keeps(
        self, task: PoolTask, choice: RouteChoice, workers: Mapping[str, Worker], now: float
    ) -> bool:
        """Keep a task for a busy worker, once and for no longer than another takes to read it."""
        if task.reserved_for:
            worker = workers.get(task.reserved_for)
            is_busy = worker is not None and worker.is_ready and not worker.n_free
            return now < task.held_until and is_busy and choice.worker is not worker
        better = choice.better
        if better is None or not task.is_patient:
            return False
        n_kept = sum(one.reserved_for == better.worker for one in self._kept.values())
        if n_kept >= workers[better.worker].n_slots:
            return False
        task.reserved_for = better.worker
        task.held_until = task.since + min(better.patience_s, self._limit_s)
        self._kept[task.spec.task_id] = task
        return now < task.held_until

    def defers(
        self, task: PoolTask, able: Sequence[Worker], workers: Collection[Worker], now: float
    ) -> bool:
        """Let others go first, for a while, where a worker that is busy knows the prompt."""
        spec = task.spec
        if not spec.prefix.blocks or spec.is_special or now >= task.deferred_until:
            return False
        if task.best_cached_worker is None:
            ready = [w for w in workers if w.model == spec.model and w.is_ready]
            task.best_cached_worker = self._router.best_cached_worker(spec, ready)
        saved_s = self._router.saved_s(spec, task.best_cached_worker, able)
        if saved_s and math.isinf(task.deferred_until):
            task.deferred_until = now + min(max(_DEFERRED_S, 2 * saved_s), self._limit_s)
        return saved_s > 0

    def forget(self, task_id: int) -> None:
        """Drop a task that waits no longer."""
        self._kept.pop(task_id, None)

    def released(self, now: float) -> list[str]:
        """Let those go whose time is over; return their models."""
        over = {i: task for i, task in self._kept.items() if task.held_until <= now}
        for task_id in over:
            del self._kept[task_id]
        return sorted({task.spec.model for task in over.values()})
