"""What admins see of requests, as JSON. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.pool.requests.record import RequestRecord, state_of
from gateway.pool.tasks.task import Task, TaskState

Places = Mapping[int, int]
"""Place in the queue by task id; 1 is next."""
_NOWHERE: Places = MappingProxyType({})


def running_view(record: RequestRecord, now: float, places: Places = _NOWHERE) -> dict[str, Any]:
    """Return a request that is being answered, with its tasks."""
    return {
        "request_id": record.request_id,
        "key": record.key or None,
        "model": record.model,
        "method": record.method,
        "path": record.path,
        "state": _state(record),
        "age_s": round(max(0.0, now - record.arrived_at), 4),
        "tasks": [_running_task(task, now, places) for task in record.tasks],
    }


def finished_tasks(record: RequestRecord) -> list[dict[str, Any]]:
    """Return where the tasks of a request went, and why; times from its arrival."""
    return [_attempts(task, record.arrived_at) for task in record.tasks]


def _state(record: RequestRecord) -> str:
    """Return the state of the task that is farthest; without a task it is being read."""
    if record.is_over:
        return "settling"
    states = [state_of(task) for task in record.tasks]
    order = ("generating", "reading", "sent", "queued", "cancelling", "ended")
    return next((state for state in order if state in states), "read")


def _running_task(task: Task, now: float, places: Places) -> dict[str, Any]:
    last = task.attempts[-1] if task.attempts else None
    return {
        "task": task.task_id,
        "state": state_of(task),
        "place": places.get(task.task_id) if task.state is TaskState.WAITING else None,
        "worker": task.worker_name or None,
        "slot": last.slot if last is not None and last.slot >= 0 else None,
        "route": task.route or None,
        "attempt": task.attempt,
        "n_prompt": task.answer.n_prompt,
        "n_cached": task.answer.n_cached,
        "n_read": last.n_read if last is not None else 0,
        "n_predicted": task.answer.n_predicted,
        "age_s": round(max(0.0, now - task.submitted_at), 4),
        "attempts": _attempts(task, task.submitted_at)["attempts"],
    }


def _attempts(task: Task, base_s: float) -> dict[str, Any]:
    return {
        "task": task.task_id,
        "finish": task.finish or None,
        "attempts": [attempt.view(number, base_s) for number, attempt in enumerate(task.attempts)],
    }
