"""What goes into the dispatcher and what comes out of it: submissions and actions, plain data."""

from dataclasses import dataclass, field
from enum import StrEnum

from gateway.pool.routing.block_hashes import Prefix
from protocol.errors import TaskError
from protocol.wire.messages import Terminal


class RouteReason(StrEnum):
    """What decided where a task went."""

    PREFIX = "prefix"
    """The beginning of its prompt should be cached there."""
    SESSION = "session"
    """Its session was there last, and nobody is known to hold its prompt."""
    SPREAD = "spread"
    """Others hold its prompt or had its session, but were too busy."""
    LOAD = "load"
    """Nobody knows it: the fastest by load."""
    PINNED = "pinned"
    """It asked for a slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
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
    prefix: Prefix = Prefix()
    """The beginnings of its prompt."""
    session: int = 0
    """Hash of what it names as its session, which shares a prompt; 0 is none."""
    label: int = 0
    """Hash of a weaker hint of the same kind; 0 is none."""
    is_whole: bool = False
    """Its client sees nothing of the answer before all of it is there."""
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
    branch: RouteReason = field(default=RouteReason.LOAD, compare=False)
    n_cached: int = field(default=0, compare=False)
    """Tokens of its prompt that should be cached there."""


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
