"""How much was used within the last minute, to the second. Pure: time is passed in.

The library `limits` was tried for this and does not fit: its memory storage keeps an entry for each
token, starts a thread with nearly every hit, and cannot give back what was reserved and not used.
"""

import math
from collections import deque

WINDOW_S = 60
"""Seconds of the window."""


class MovingWindow:
    """Amounts by the second in which they came; those older than a minute do not count."""

    def __init__(self) -> None:
        self._parts: deque[list[int]] = deque()
        """`[second, amount]`, the oldest first; at most one for each second."""
        self._total = 0

    def __repr__(self) -> str:
        return f"<MovingWindow {self._total} in {len(self._parts)} parts>"

    def total(self, now: float) -> int:
        """Return the sum of what counts now."""
        while self._parts and self._parts[0][0] + WINDOW_S <= now:
            self._total -= self._parts.popleft()[1]
        return self._total

    def add(self, amount: int, now: float) -> None:
        """Count an amount."""
        if amount:
            second = math.floor(now)
            if self._parts and self._parts[-1][0] >= second:
                self._parts[-1][1] += amount
            else:
                self._parts.append([second, amount])
            self._total += amount

    def take_back(self, amount: int, since: float, now: float) -> None:
        """Take back an amount that was counted at this time or soon after it, if it still counts.

        Anything else that came since keeps counting.
        """
        second = math.floor(since)
        for part in self._parts if second + WINDOW_S > now else ():
            if part[0] >= second:
                taken = min(amount, part[1])
                part[1] -= taken
                amount -= taken
                self._total -= taken

    def wait_s(self, amount: int, limit: int, now: float) -> float:
        """Return the seconds until an amount fits under a limit; 0 is now, infinity is never."""
        excess = self.total(now) + amount - limit
        for second, part in self._parts if excess > 0 else ():
            excess -= part
            if excess <= 0:
                return second + WINDOW_S - now
        return 0.0 if excess <= 0 else math.inf

    def parts(self, now: float) -> list[tuple[float, int]]:
        """List what counts now as `(age in seconds, amount)`, the oldest first."""
        self.total(now)
        return [(now - second, amount) for second, amount in self._parts if amount]
