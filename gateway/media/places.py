"""Places for fetches: those of one tenant, however slow, leave some to all others."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.http.bodies.byte_budget import ByteBudget


class FetchPlaces:
    """A number of places, shared as bytes are; tenants that wait for one take turns."""

    def __init__(self, n: int) -> None:
        self._budget = ByteBudget(n)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By tenant, the one whose turn is next first; none is empty."""

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a place, and hold it."""
        if tenant in self._waiting or not self._budget.fits(1, tenant):
            await self._turn(tenant)
        else:
            self._budget.add(1, tenant)
        try:
            yield
        finally:
            self._give_back(tenant)

    async def _turn(self, tenant: str) -> None:
        """Wait until a place has been taken for this tenant."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._remove(tenant, turn)
            else:
                self._give_back(tenant)
            raise

    def _give_back(self, tenant: str) -> None:
        self._budget.add(-1, tenant)
        while (following := self._next()) is not None:
            turns = self._waiting[following]
            turn = turns[0]
            self._remove(following, turn)
            if turns:  # the others go first
                self._waiting[following] = self._waiting.pop(following)
            if not turn.done():
                self._budget.add(1, following)
                turn.set_result(None)

    def _next(self) -> str | None:
        """Find the tenant that takes the next place; None if nobody may have it."""
        fits = self._budget.fits
        return next((tenant for tenant in self._waiting if fits(1, tenant)), None)

    def _remove(self, tenant: str, turn: "asyncio.Future[None]") -> None:
        turns = self._waiting.get(tenant)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[tenant]
