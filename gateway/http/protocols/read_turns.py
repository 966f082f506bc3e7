"""Lets the connections of HTTP/2 read their large pieces of data in turn."""

import asyncio

_LONG_READ_S = 0.005
"""CPU time of reading one piece beyond which the next connection waits; 4 KiB of a body or of
requests as browsers send them take less."""
_PAUSES = 4
"""The next one waits so many times as long, so that such pieces have a fifth of the loop."""


class ReadTurns:
    """The turns of all connections of a server."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.paused_until = 0.0
        """Time of the loop before which no connection is read."""

    async def enter(self) -> None:
        """Wait for a turn, which ends with the turn of the loop."""
        async with self.lock:
            await asyncio.sleep(self.paused_until - asyncio.get_running_loop().time())

    def note(self, read_s: float) -> None:
        """Let the next one wait if reading a piece took long."""
        if read_s > _LONG_READ_S:
            now = asyncio.get_running_loop().time()
            self.paused_until = max(self.paused_until, now + _PAUSES * read_s)
