"""Tasks that came while the model was away, until it is loaded again. Pure."""

from protocol.errors import TaskError
from protocol.wire.messages import Done, Failed, Finish, TaskMessage, Terminal
from protocol.wire.side_tasks import SetLora, SetSystemPrompt

TaskKey = tuple[int, int]

ORDERS = (SetLora, SetSystemPrompt)
"""They are for the worker, not for whoever waits for the answer: a cancel does not undo them."""


class PendingTasks:
    """Keeps tasks in the order in which they came; each leaves once."""

    def __init__(self) -> None:
        self._tasks: dict[TaskKey, TaskMessage] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        return f"<PendingTasks tasks={len(self._tasks)}>"

    def add(self, task: TaskMessage) -> None:
        """Let a task wait."""
        self._tasks[task.task_id, task.attempt] = task

    def cancel(self, key: TaskKey) -> Done | None:
        """Give a task up; return its end, or None if it does not wait here or must be done."""
        task = self._tasks.get(key)
        if task is None or isinstance(task, ORDERS):
            return None
        del self._tasks[key]
        return cancelled(key)

    def take(self) -> list[TaskMessage]:
        """Hand all of them out, in order."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        return tasks

    def fail(self, error: TaskError) -> list[Terminal]:
        """End all of them."""
        return [failed(task, error) for task in self.take()]


def cancelled(key: TaskKey) -> Done:
    """Make the terminal message of a task that was cancelled before it ran."""
    return Done(task_id=key[0], attempt=key[1], finish=Finish.CANCELLED)


def failed(task: TaskMessage, error: TaskError) -> Failed:
    """Make the terminal message of a task that has no result."""
    return Failed(
        task_id=task.task_id,
        attempt=task.attempt,
        code=error.code,
        message=error.message,
        param=error.param,
        detail=error.detail or None,
    )
