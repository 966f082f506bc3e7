"""Limits how often a fault that goes on is logged."""

import time
from collections.abc import Callable

_PAUSE_S = 60.0
"""Seconds between two lines. Source: who looks finds a recent one, and a day has 1,440."""


class LogPause:
    """Lets one line a minute into the log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = 0.0

    def take_turn(self) -> bool:
        """Return whether a line may be written now; if so, the next pause begins."""
        now = self._clock()
        if now < self._until:
            return False
        self._until = now + _PAUSE_S
        return True
