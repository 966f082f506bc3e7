"""What the supervisor remembers of a child between two turns of its loop."""

from dataclasses import dataclass, field

from worker.supervisor.managed_child import ChildState, ManagedChild
from worker.supervisor.restart_policy import History


@dataclass(slots=True)
class ChildWatch:
    """One child."""

    child: ManagedChild
    history: History = field(default_factory=History)
    due_at: float = 0.0
    """When it starts; only while WAITING."""
    ready_at: float = 0.0
    was_ready: bool = False
    """In any of its lives."""
    heard_at: float = 0.0
    """Its last sign of progress since READY."""
    exit_code: int = 0
    failure: str = ""
    """Why it could not be started at all."""
    is_killed: bool = False
    """It was sent SIGKILL and is not dead yet."""
    leaves_by: float | None = None
    """It was told to go, and is killed at this time."""

    @property
    def is_timed(self) -> bool:
        """Tell whether its silence is watched."""
        is_watched = self.child.launch.watchdog_s > 0 and not self.is_killed
        return self.child.state is ChildState.READY and is_watched


def fraction(text: str) -> float:
    """Read a share of 0 to 1 that a child reported; anything else counts as 0."""
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0
