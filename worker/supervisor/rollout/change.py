"""The parts of a rolling change: changes of single workers, its view of them, and its steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from protocol.config.rollout_config import GoldenConfig


class ProcessState(Enum):
    """State of a process, as far as a rolling change depends on it."""

    ABSENT = "absent"
    """There is no process, or it has ended on request."""
    STARTING = "starting"
    READY = "ready"
    """It serves, unless it is held."""
    DEAD = "dead"
    """It has died, or cannot be started; the restart policy may start it again."""
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One worker is replaced, added (`old` is empty) or removed (`new` is empty)."""

    model: str
    old: str = ""
    """Name of the process that leaves."""
    new: str = ""
    """Name of the process that starts; no other process has it."""
    is_comparable: bool = False
    """Whether the new process must give the same greedy answers as the old one."""

    @property
    def title(self) -> str:
        """Return the worker that log lines name."""
        return self.old or self.new

    def reversed(self) -> "Change":
        """Return the change that undoes this one."""
        return Change(model=self.model, old=self.new, new=self.old)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """Time limits of a rolling change, in seconds, and the checks of new workers."""

    start_s: float = 600.0
    """Maximum time until a new worker is ready."""
    probation_s: float = 5.0
    """How long a new worker must serve clients before the next one is replaced."""
    golden: tuple[GoldenConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start the new process. It is held, unless a rollback restores it."""

    change: Change
    is_held: bool = True


@dataclass(frozen=True, slots=True)
class Leave:
    """Ask a process to leave; its streams continue on other workers."""

    name: str


@dataclass(frozen=True, slots=True)
class Question:
    """Ask a process all golden prompts."""

    name: str
    number: int
    """Distinguishes the answers to this question from those to earlier ones."""


@dataclass(frozen=True, slots=True)
class AdmitWorker:
    """Let clients' tasks reach a new process."""

    name: str


Step = StartWorker | Leave | Question | AdmitWorker


class FleetView(Protocol):
    """The states of the processes, for a rolling change."""

    def state(self, name: str) -> ProcessState:
        """Return the state of a process."""

    def why(self, name: str) -> str:
        """Return why a process has died."""

    def serving(self, model: str) -> Sequence[str]:
        """Name the processes of a model that serve clients and do not leave."""

    def waits_for(self, model: str) -> Sequence[str]:
        """Name the processes of a model that start or have died."""

    def has_room(self, change: Change) -> bool:
        """Return whether the new process fits into the memory beside the old one."""

    def is_restorable(self, name: str) -> bool:
        """Return whether a process that has ended would load the same files again."""

    def answers(self, number: int) -> Sequence[str] | str | None:
        """Return the answers to a question, or an error text; None while they are pending."""
