"""What the supervisor remembers of a child between two turns of its loop."""

from dataclasses import dataclass, field

from worker.supervisor.managed_child import Child, State
from worker.supervisor.restart_policy import History


@dataclass(slots=True)
class Watch:
    """One child."""

    child: Child
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
    is_doomed: bool = False
    """It was sent SIGKILL and is not dead yet."""
    leaves_by: float | None = None
    """It was told to go, and is killed at this time."""

    @property
    def is_timed(self) -> bool:
        """Tell whether its silence is watched."""
        is_watched = self.child.launch.watchdog_s > 0 and not self.is_doomed
        return self.child.state is State.READY and is_watched
