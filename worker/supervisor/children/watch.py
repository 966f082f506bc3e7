"""State that the supervisor keeps about a child between two turns of its loop."""

import signal
from dataclasses import dataclass, field

from protocol.errors import EXIT_OK
from worker.supervisor.children.exit_reasons import explain
from worker.supervisor.children.managed_child import ChildState, ManagedChild
from worker.supervisor.children.restart_policy import RunHistory

RESTING = (ChildState.WAITING, ChildState.QUARANTINED)
"""States of a child that does not run and starts at `due_at`."""
DOWN = (*RESTING, ChildState.GIVEN_UP)
"""States of a child that does not run because it died."""


@dataclass(slots=True)
class ChildWatch:
    """A child with its history and deadlines; times are of the monotonic clock, in seconds."""

    child: ManagedChild
    history: RunHistory = field(default_factory=RunHistory)
    due_at: float = 0.0
    """When it starts; only while it is resting."""
    ready_at: float = 0.0
    was_ready: bool = False
    """Whether any of its runs became READY."""
    watchdog_at: float = 0.0
    """Time of its last watchdog message since READY."""
    n_starts: int = 0
    exit_code: int = 0
    failure: str = ""
    """Why it could not be started; empty if it could."""
    is_killed: bool = False
    """Whether it was sent SIGKILL and has not been reaped yet."""
    is_trial: bool = False
    """Whether it is not restarted after a death, because another process does its work."""
    leaves_by: float | None = None
    """Time at which it is killed; None unless it was asked to leave."""

    @property
    def is_timed(self) -> bool:
        """Whether it is killed if it sends no watchdog message in time."""
        is_watched = self.child.launch.watchdog_s > 0 and not self.is_killed
        return self.child.state is ChildState.READY and is_watched

    @property
    def n_restarts(self) -> int:
        """Count the starts after the first one."""
        return max(0, self.n_starts - 1)

    @property
    def was_drained(self) -> bool:
        """Whether it ended with exit code 0 after it had reported that it was told to leave."""
        return self.exit_code == EXIT_OK and "STOPPING" in self.child.reports

    def leave(self) -> None:
        """Tell the process to leave; one that is not ready has nothing to finish and is killed."""
        if self.child.state in RESTING:
            self.child.become(ChildState.ENDED)
        elif self.child.state is ChildState.READY:
            self.child.kill(signal.SIGTERM)
        else:
            self.is_killed = True
            self.child.kill(signal.SIGKILL)

    def cause(self) -> str:
        """Return why the process has ended: its own reason, or else that of its exit code."""
        return self.failure or self.child.reason or explain(self.exit_code, self.child.abort_reason)


def fraction(text: str) -> float:
    """Read the progress that a child reported, 0 to 1; malformed text counts as 0."""
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0
