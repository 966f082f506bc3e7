"""What goes into the dispatcher and what comes out of it: submissions and actions, plain data."""

from dataclasses import dataclass

from protocol.errors import TaskError
from protocol.messages import Terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What the dispatcher must know of a task."""

    task_id: int
    """Grows with every submission."""
    model: str
    tenant: str = ""
    n_tokens: int = 1
    """The prompt's length as guessed before a worker has counted it."""
    takes_credit: bool = True
    worker: str = ""
    """Name of the one worker that may run it; empty is any."""
    slot: int = -1
    """That worker's own slot number; -1 is any."""
    is_bound: bool = False
    """It means what the worker holds now: with the worker it is lost, and goes to no other."""

    @property
    def is_special(self) -> bool:
        """Whether it needs anything else than a credit of any worker."""
        return bool(self.worker) or not self.takes_credit


@dataclass(frozen=True, slots=True)
class Assign:
    """Send the task to the worker."""

    worker: str
    task_id: int
    attempt: int
    slot: int


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Tell the worker to end the attempt."""

    worker: str
    task_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand the terminal message to the task's stream."""

    message: Terminal


@dataclass(frozen=True, slots=True)
class Fail:
    """End the task's stream with an error."""

    task_id: int
    error: TaskError


Action = Assign | CancelTask | Deliver | Fail
