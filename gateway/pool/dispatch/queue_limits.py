"""How many tasks may wait, which task leaves a full queue, and the errors of refusals. Pure."""

import math
from typing import NamedTuple

from gateway.pool.routing.policy import RoutingPolicy
from gateway.pool.tasks.task import Task
from gateway.pool.tenants.task_queue import TaskQueue
from gateway.pool.workers.slot_map import SlotMap
from protocol.errors import ErrorCode, TaskError

_MAX_RETRY_AFTER_S = 60
"""The OpenAI SDK gives up on a `Retry-After` above 120 s."""
_MIN_QUEUE = 16
_QUEUE_PER_SLOT = 4
"""Tasks that may wait unless `queue_size` is set: the larger of both."""


class QueuePlace(NamedTuple):
    """Where a task stands in the queue of its model."""

    position: int
    """1 is next."""
    wait_s: float | None
    """Expected time until it has a slot; None before the model was measured."""
    n_waiting: int
    """Tasks in the queue."""


class QueueLimits:
    """The bounds of the queue."""

    def __init__(
        self,
        queue: TaskQueue,
        slots: SlotMap,
        routing: RoutingPolicy,
        *,
        queue_size: int,
    ) -> None:
        self._queue = queue
        self._slots = slots
        self._routing = routing
        self._queue_size = queue_size

    def __repr__(self) -> str:
        return f"<QueueLimits {self._queue!r}>"

    def limit(self, model: str) -> int:
        """Tasks of a model that may wait; one that a lost worker gives back may exceed it."""
        return self._queue_size or max(_MIN_QUEUE, _QUEUE_PER_SLOT * self._slots.n_slots(model))

    def is_full(self, model: str) -> bool:
        """Return whether as many tasks of a model wait as may."""
        return self._queue.depth(model) >= self.limit(model)

    def displaced_by(self, task: Task) -> tuple[Task, TaskError]:
        """Choose the task whose place in a full queue goes to this one; raises `TaskError`."""
        last = self._queue.displaced_by(task)
        if last is None:
            raise self.overloaded(task.spec.model, "The queue is full")
        is_lower = last.spec.limits.priority > task.spec.limits.priority
        why = "requests of a higher class" if is_lower else "clients with fewer requests in it"
        message = f"The queue is full, and {why} go first"
        return last, self.overloaded(task.spec.model, message)

    def too_late(self, task: Task) -> TaskError:
        """Return the error of a task that has waited too long."""
        model, limit_s = task.spec.model, self._queue.timeout_s
        order = self._routing.order
        keys = list(order.latest(model).bits)
        if task.answer.has_started:
            keys = [key for key in keys if order[key].model_fingerprint == task.model_fingerprint]
        if not keys:
            text = f"No worker was ready within {limit_s:g} s"
            if task.answer.has_started:
                text = f"The worker was lost, and no other with its model came within {limit_s:g} s"
            elif task.cause is not None:
                text = f"The worker was lost, and no other came within {limit_s:g} s"
            return TaskError(ErrorCode.UNAVAILABLE, text)
        return self.overloaded(model, f"No slot became free within {limit_s:g} s")

    def place(self, task: Task) -> QueuePlace:
        """Return the place of a task that waits, or that has just come."""
        model = task.spec.model
        position = self._queue.position(task, self._routing.answer_tokens(model))
        service_s, wait_s = self._routing.throughput(model).service_s, None
        if service_s.is_measured:
            own_s = self._queue.turns_of_tenant(task) * service_s.value
            wait_s = max(self._wait_s(model, position), own_s)
        return QueuePlace(position, wait_s, self._queue.depth(model))

    def check_in_time(self, task: Task, ready_s: float | None) -> None:
        """Raise `TaskError` if a task's first token cannot be there in time.

        `ready_s` is the predicted time if it goes to a worker at once, 0 if that is unknown; None
        if it must wait. Nothing is refused before the model was measured.
        """
        spec = task.spec
        model, within_s = spec.model, spec.start_within_s
        if math.isinf(within_s) or not self._routing.throughput(model).service_s.is_measured:
            return
        wait_s = 0.0
        if ready_s is None:
            wait_s = self.place(task).wait_s or 0.0
            ready_s = wait_s + self._routing.read_s(spec)
        if ready_s > within_s:
            message = f"The first token is expected after about {ready_s:.1f} s"
            text = f"{message}, later than the limit of {within_s:g} s"
            raise self.overloaded(model, text, wait_s)

    def _wait_s(self, model: str, position: int) -> float:
        n_slots = self._routing.order.latest(model).n_own
        return position * self._routing.throughput(model).service_s.value / max(1, n_slots)

    def overloaded(self, model: str, message: str, min_wait_s: float = 0.0) -> TaskError:
        """Build the refusal with the time in which a slot for one more should become free."""
        position = self._queue.depth(model) + 1
        wait_s = max(min_wait_s, self._wait_s(model, position))
        detail = {
            "retry_after_s": min(max(1, math.ceil(wait_s)), _MAX_RETRY_AFTER_S),
            "queue_position": position,
            "queue_wait_ms": round(wait_s * 1000),
        }
        return TaskError(ErrorCode.OVERLOADED, message, detail=detail)
