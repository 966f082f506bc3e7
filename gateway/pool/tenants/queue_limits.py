"""How many tasks may wait, who gives way in a full queue, and what the refused are told. Pure."""

import math
from collections.abc import Mapping

from gateway.pool.dispatch.slot_map import SlotMap
from gateway.pool.dispatch.workers import Worker
from gateway.pool.routing.policy import RoutingPolicy
from gateway.pool.task import Task
from gateway.pool.tenants.task_queue import TaskQueue
from protocol.errors import ErrorCode, TaskError

_MAX_RETRY_AFTER_S = 60
"""The OpenAI SDK gives up on a `Retry-After` above 120 s."""
_MIN_QUEUE = 16
_QUEUE_PER_SLOT = 4


class QueueLimits:
    """The bounds of the queue."""

    def __init__(
        self,
        queue: TaskQueue,
        slots: SlotMap,
        workers: Mapping[str, Worker],
        router: RoutingPolicy,
        *,
        queue_size: int,
    ) -> None:
        self._queue = queue
        self._slots = slots
        self._workers = workers
        self._router = router
        self._queue_size = queue_size

    def __repr__(self) -> str:
        return f"<QueueLimits {self._queue!r}>"

    def limit(self, model: str) -> int:
        """Tasks of a model that may wait; one that a lost worker gives back may exceed it."""
        return self._queue_size or max(_MIN_QUEUE, _QUEUE_PER_SLOT * self._slots.n_slots(model))

    def is_full(self, model: str) -> bool:
        """Tell whether as many tasks of a model wait as may."""
        return self._queue.depth(model) >= self.limit(model)

    def displaced_by(self, task: Task) -> tuple[Task, TaskError]:
        """Choose who gives its place in a full queue to a task; raises `TaskError` if none does.

        The place is taken from the tenant with most tasks in the queue.
        """
        last = self._queue.displaced_by(task)
        if last is None:
            raise self.overloaded(task.spec.model, "The queue is full")
        message = "The queue is full, and others have fewer requests in it"
        return last, self.overloaded(task.spec.model, message)

    def too_late(self, task: Task) -> TaskError:
        """Return the error of a task that has waited too long."""
        model, limit_s = task.spec.model, self._queue.timeout_s
        has_worker = any(one.is_ready and one.model == model for one in self._workers.values())
        if task.cause is not None and not has_worker:
            text = f"The worker was lost, and no other came within {limit_s:g} s"
            return TaskError(ErrorCode.UNAVAILABLE, text)
        return self.overloaded(model, f"No slot became free within {limit_s:g} s")

    def overloaded(self, model: str, message: str) -> TaskError:
        """Build the refusal with the time in which a slot for one more should become free."""
        slots = sum(worker.n_slots for worker in self._workers.values() if worker.model == model)
        n_before = self._queue.depth(model) + 1
        wait_s = math.ceil(n_before * self._router.service_s(model) / max(1, slots))
        retry_after_s = min(max(1, wait_s), _MAX_RETRY_AFTER_S)
        return TaskError(ErrorCode.OVERLOADED, message, detail={"retry_after_s": retry_after_s})
