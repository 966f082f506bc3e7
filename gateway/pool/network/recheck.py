"""Checks ended connections twice: the event may come before libzmq has removed the route."""

import asyncio
from collections.abc import Callable

_RECHECK_S = 0.05
"""Seconds until the second look."""


class DisconnectRecheck:
    """Calls `look` with the descriptors of ended connections: at once, and a moment later."""

    def __init__(self, look: Callable[[set[int]], None]) -> None:
        self._look = look
        self._ended: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def ended(self, descriptors: set[int]) -> None:
        """Note that the connections of these descriptors have ended."""
        self._look(descriptors)
        self._ended |= descriptors
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_RECHECK_S, self._again)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _again(self) -> None:
        self._timer = None
        ended, self._ended = self._ended, set()
        self._look(ended)
