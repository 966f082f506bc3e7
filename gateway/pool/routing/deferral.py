"""Tasks that wait although they could go, because a busy worker has their prompt in its cache.

Pure. There are two kinds of waiting, both bounded. While slots are scarce, a task lets later tasks
of its tenant go first: every slot stays in use. While a slot is free, a task is reserved for a busy
worker only if waiting for that one is predicted to be much faster.
"""

import math
from collections.abc import Mapping

from gateway.pool.routing.policy import RouteChoice, RoutingPolicy
from gateway.pool.tasks.task import Task
from gateway.pool.workers.worker import Worker

_QUEUE_SHARE = 0.25
"""Share of the queue's time limit for which a task may wait in either way."""
_MIN_DEFERRED_S = 1.0
"""How long a task lets others go first even if that saves less: a slot becomes free meanwhile."""


class DeferralPolicy:
    """Decides which tasks wait for which worker."""

    def __init__(self, routing: RoutingPolicy, *, timeout_s: float) -> None:
        self._routing = routing
        self._limit_s = _QUEUE_SHARE * timeout_s
        self._reserved: dict[int, Task] = {}

    @property
    def ids(self) -> set[int]:
        """Ids of the tasks that are reserved for a busy worker now."""
        return set(self._reserved)

    def reserves(
        self, task: Task, choice: RouteChoice, workers: Mapping[str, Worker], now: float
    ) -> bool:
        """Keep a task for a busy worker, once and for no longer than another takes to read it."""
        if task.reserved_for:
            return self.keeps(task, workers, now) and choice.worker.key != task.reserved_for
        better = choice.better
        if better is None or not task.can_be_reserved:
            return False
        n_reserved = sum(
            waiting.reserved_for == better.worker for waiting in self._reserved.values()
        )
        if n_reserved >= workers[better.worker].n_slots:
            return False
        task.reserved_for = better.worker
        task.reserved_until = task.waits_since + min(better.max_wait_s, self._limit_s)
        self._reserved[task.task_id] = task
        return now < task.reserved_until

    def keeps(self, task: Task, workers: Mapping[str, Worker], now: float) -> bool:
        """Return whether a task is reserved for a busy worker while another one has a free slot."""
        worker = workers.get(task.reserved_for)
        is_busy = worker is not None and worker.is_ready and not worker.n_free
        return is_busy and now < task.reserved_until

    def defers(self, task: Task, now: float) -> bool:
        """Let others go first, for a while, if a busy worker has the prompt in its cache."""
        spec = task.spec
        if not spec.prefix.chain or spec.is_special or now >= task.deferred_until:
            return False
        if task.best_cached_worker is None:
            task.best_cached_worker = self._routing.best_cached_worker(spec, now)
        saved_s = self._routing.saved_s(spec, task.best_cached_worker, now)
        if saved_s and math.isinf(task.deferred_until):
            task.deferred_until = now + min(max(_MIN_DEFERRED_S, 2 * saved_s), self._limit_s)
        return saved_s > 0

    def stays(self, task: Task, now: float) -> bool:
        """Return whether a task waits on in its worker although another one can take it.

        It does for as long as a task of its model usually has its slot. Leaving sooner would take
        slots from prompts that are cached there, and all would read more.
        """
        usual_s = self._routing.throughput(task.spec.model).service_s.value
        return now < task.assigned_at + min(max(_MIN_DEFERRED_S, usual_s), self._limit_s)

    def n_kept(self, worker: Worker) -> int:
        """Count the tasks of a worker's model that are reserved for other workers."""
        reserved = self._reserved.values()
        return sum(
            task.spec.model == worker.model and task.reserved_for != worker.key for task in reserved
        )

    def forget(self, task: Task) -> None:
        """Drop a task that waits no longer."""
        self._reserved.pop(task.task_id, None)

    def released(self, now: float) -> list[str]:
        """Release the tasks whose time is over; return their models."""
        over = [task for task in self._reserved.values() if task.reserved_until <= now]
        for task in over:
            del self._reserved[task.task_id]
        return sorted({task.spec.model for task in over})
