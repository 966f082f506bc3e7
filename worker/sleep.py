"""When a worker sleeps: its phases, and the time without a task. Pure.

As llama-server's --sleep-idle-seconds: after that time without a task the model is freed, and the
next task loads it again. The process stays connected and keeps its registration.
"""

from enum import Enum


class SleepPhase(Enum):
    """State of a worker's model."""

    LOADING = "loading"
    """Being loaded, at the start or for a task."""
    AWAKE = "awake"
    CLOSING = "closing"
    """Being freed by the engine's thread."""
    ASLEEP = "asleep"


NEXT: dict[SleepPhase, SleepPhase] = {
    SleepPhase.LOADING: SleepPhase.AWAKE,
    SleepPhase.AWAKE: SleepPhase.CLOSING,
    SleepPhase.CLOSING: SleepPhase.ASLEEP,
    SleepPhase.ASLEEP: SleepPhase.LOADING,
}
"""The only transitions; the process may end in any phase."""


class IdleTime:
    """Measures the time without a task; `limit_s` of 0 or less means no limit."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._since = 0.0
        self._n_tasks = 0

    def begin(self, now: float) -> None:
        """Start measuring; the model has just been loaded."""
        self._since = now

    def is_over(self, now: float, *, n_tasks: int, is_idle: bool) -> bool:
        """Return whether the limit is reached; `n_tasks` counts all tasks since the start."""
        if not is_idle or n_tasks != self._n_tasks:
            self._since, self._n_tasks = now, n_tasks
        return 0 < self.limit_s <= now - self._since
