"""When a worker sleeps: its phases, and how long nobody has asked anything. Pure.

As llama-server's --sleep-idle-seconds: after that time without a task the model is freed, and the
next task loads it again. The process, its registration and what it tells of itself stay.
"""

from enum import Enum


class SleepPhase(Enum):
    """Where a worker's model is."""

    LOADING = "loading"
    """At the start, or because a task has come."""
    AWAKE = "awake"
    CLOSING = "closing"
    """The engine's thread frees it."""
    ASLEEP = "asleep"


NEXT: dict[SleepPhase, SleepPhase] = {
    SleepPhase.LOADING: SleepPhase.AWAKE,
    SleepPhase.AWAKE: SleepPhase.CLOSING,
    SleepPhase.CLOSING: SleepPhase.ASLEEP,
    SleepPhase.ASLEEP: SleepPhase.LOADING,
}
"""One way round; from anywhere the process may end."""


class IdleTime:
    """How long there was no task; `limit_s` of 0 or less is no limit."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._since = 0.0
        self._n_tasks = 0

    def begin(self, now: float) -> None:
        """Count from now on: the model has just been loaded."""
        self._since = now

    def is_over(self, now: float, *, n_tasks: int, is_idle: bool) -> bool:
        """Tell whether it has been long enough; `n_tasks` counts all that ever came."""
        if not is_idle or n_tasks != self._n_tasks:
            self._since, self._n_tasks = now, n_tasks
        return 0 < self.limit_s <= now - self._since
