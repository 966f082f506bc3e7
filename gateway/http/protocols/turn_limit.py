"""Spreads requests over turns of the event loop, so that nothing else waits for many of them."""

import asyncio
from collections import deque


class TurnLimit:
    """Lets `n` tasks go on in one turn of the loop; the others follow in their order."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._left = n
        """How many more may go on in this turn; once it is below `n`, the next turn resets it."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __repr__(self) -> str:
        return f"<TurnLimit n={self._n} waiting={len(self._waiting)}>"

    async def enter(self) -> None:
        """Return in this turn, if few tasks have done so, or in a later one."""
        loop = asyncio.get_running_loop()
        if not self._left:
            waiter = loop.create_future()
            self._waiting.append(waiter)
            await waiter
            return
        if self._left == self._n:
            loop.call_soon(self._next_turn, loop)
        self._left -= 1

    def _next_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = self._n
        while self._left and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # it was cancelled
                waiter.set_result(None)
                self._left -= 1
        if self._left < self._n:
            loop.call_soon(self._next_turn, loop)
