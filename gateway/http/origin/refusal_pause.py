"""Refusals of clients that ask again at once leave later, so that they cannot fill the loop.

A refusal takes the gateway about a millisecond of its one loop, in which no slot gets a task. A
client that heeds `Retry-After`, which is a second at least, never notices.
"""

import asyncio
from collections import OrderedDict

from starlette.types import Receive

from gateway.http.disconnect import disconnected, guarded
from gateway.http.errors import ANSWERS
from protocol.errors import TaskError

PAUSE_S = 1.0
"""Seconds. Source: the least `Retry-After`."""
_MOST_HELD = 1000
"""Refusals that wait at once; beyond them each leaves at once, for they hold connections."""
_MOST_TENANTS = 4096
_TOO_MANY = 429


class RefusalPause:
    """Remembers when each tenant was refused."""

    def __init__(self) -> None:
        self.n_held = 0
        """Refusals that wait now."""
        self._refused_at: OrderedDict[str, float] = OrderedDict()
        """When a refusal of each tenant left at once, the longest ago first."""

    def __repr__(self) -> str:
        return f"<RefusalPause held={self.n_held} tenants={len(self._refused_at)}>"

    async def hold(self, tenant: str, error: TaskError, receive: Receive) -> None:
        """Wait before an error is answered, if it is a 429 and must; raises `ClientGone`."""
        if ANSWERS[error.code].status != _TOO_MANY:
            return
        pause_s = self.due_s(tenant, asyncio.get_running_loop().time())
        if not pause_s:
            return
        self.n_held += 1
        try:
            await guarded(asyncio.sleep(pause_s), disconnected(receive))
        finally:
            self.n_held -= 1

    def due_s(self, tenant: str, now: float) -> float:
        """Return how long a refusal waits: not at all if it is the tenant's first in a while."""
        last = self._refused_at.get(tenant)
        if self.n_held >= _MOST_HELD:
            return 0.0
        if last is not None and now < last + PAUSE_S:
            return PAUSE_S
        self._refused_at[tenant] = now
        self._refused_at.move_to_end(tenant)
        if len(self._refused_at) > _MOST_TENANTS:
            self._refused_at.popitem(last=False)
        return 0.0
