"""What the dispatcher tells the pool to do: plain data."""

from dataclasses import dataclass

from protocol.errors import TaskError
from protocol.wire.messages import Envelope


@dataclass(frozen=True, slots=True)
class Assign:
    """Send the task to the worker of this key."""

    worker: str
    task_id: int
    attempt: int
    slot: int
    """The worker's own slot number; -1 for any."""


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Tell the worker to end the attempt."""

    worker: str
    task_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ProceedTask:
    """Tell the worker to resume a paused answer."""

    worker: str
    task_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Pass the terminal message to the task's stream."""

    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Fail:
    """End the task's stream with an error."""

    task_id: int
    error: TaskError


@dataclass(frozen=True, slots=True)
class Ejected:
    """Log that the worker of this key gets one task at a time from now on, and why."""

    worker: str
    cause: str


Action = Assign | CancelTask | Deliver | Ejected | Fail | ProceedTask
