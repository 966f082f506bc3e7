"""Tasks that wait until the model is loaded. Pure."""

from collections.abc import KeysView

from protocol.wire.messages import Done, Envelope, Finish, TaskKey
from protocol.wire.side_tasks import SetLora, SetSystemPrompt

ORDERS = (SetLora, SetSystemPrompt)
"""They change the worker for all clients, so a cancel by one client does not stop them."""


class PendingTasks:
    """Keeps tasks in the order of their arrival; each is returned once."""

    def __init__(self) -> None:
        self._tasks: dict[TaskKey, Envelope] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, envelope: Envelope) -> None:
        """Let a task wait."""
        self._tasks[envelope.task] = envelope

    def cancel(self, key: TaskKey) -> Envelope | None:
        """Cancel a task; return its end, or None if it does not wait here or is an order."""
        envelope = self._tasks.get(key)
        if envelope is None or isinstance(envelope.payload, ORDERS):
            return None
        del self._tasks[key]
        return cancelled(key)

    @property
    def keys(self) -> KeysView[TaskKey]:
        """The attempts that wait."""
        return self._tasks.keys()

    def drop(self, connection: int) -> None:
        """Forget what came over a connection."""
        for key in [key for key in self._tasks if key.connection == connection]:
            del self._tasks[key]

    def take(self) -> list[Envelope]:
        """Remove and return all tasks, in order."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        return tasks


def cancelled(key: TaskKey) -> Envelope:
    """Make the terminal message of a task that was cancelled before it ran."""
    return Envelope(key, Done(finish=Finish.CANCELLED))
