"""Spreads requests over turns of the event loop, so that nothing else waits for many of them."""

import asyncio
from collections import deque


class TurnLimit:
    """Lets `n` tasks go on in one turn of the loop; the others follow in their order."""

    __slots__ = ("_is_counting", "_left", "_n", "_waiting")

    def __init__(self, n: int) -> None:
        self._n = n
        self._left = n
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_counting = False

    def __repr__(self) -> str:
        return f"<TurnLimit n={self._n} waiting={len(self._waiting)}>"

    async def enter(self) -> None:
        """Return in this turn, if few tasks have done so, or in a later one."""
        loop = asyncio.get_running_loop()
        if self._left and not self._waiting:
            self._left -= 1
            self._count(loop)
            return
        waiter = loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _count(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_counting:
            self._is_counting = True
            loop.call_soon(self._next_turn, loop)

    def _next_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_counting, self._left = False, self._n
        while self._left and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # it was cancelled
                waiter.set_result(None)
                self._left -= 1
        if self._left < self._n:
            self._count(loop)
