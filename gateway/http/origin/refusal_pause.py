"""Delays refusals to clients that retry at once, so that they cannot fill the event loop.

A refusal takes about a millisecond of the loop, in which no task is assigned. A client that waits
for `Retry-After`, which is a second or more, is never delayed.
"""

import asyncio
from collections import OrderedDict

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from gateway.http.disconnect import disconnected, guarded
from gateway.http.errors import ANSWERS, on_task_error
from protocol.errors import TaskError

PAUSE_S = 1.0
"""Seconds. Source: the least `Retry-After`."""
_MAX_HELD = 1000
"""Maximum delayed refusals, each of which holds a connection; beyond, none is delayed."""
_MAX_TENANTS = 4096
"""Tenants remembered; the one refused longest ago is forgotten first."""
_TOO_MANY = 429


class RefusalPause:
    """Remembers when each tenant was refused."""

    def __init__(self) -> None:
        self.n_held = 0
        """Refusals that wait now."""
        self._refused_at: OrderedDict[str, float] = OrderedDict()
        """When each tenant was last refused without a delay, the longest ago first."""

    def __repr__(self) -> str:
        return f"<RefusalPause held={self.n_held} tenants={len(self._refused_at)}>"

    async def answer(self, request: Request, error: Exception) -> Response:
        """Answer a `TaskError`, a refusal of a client that retries at once after a pause."""
        assert isinstance(error, TaskError)
        await self.hold(request.scope.get("tenant", ""), error, request.receive)
        return await on_task_error(request, error)

    async def hold(self, tenant: str, error: TaskError, receive: Receive) -> None:
        """Delay the answer to a 429 if the tenant retries at once; raises `ClientGone`."""
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
        """Return the delay of a refusal in seconds; 0 if the tenant was not refused just before."""
        last = self._refused_at.get(tenant)
        if self.n_held >= _MAX_HELD:
            return 0.0
        if last is not None and now < last + PAUSE_S:
            return PAUSE_S
        self._refused_at[tenant] = now
        self._refused_at.move_to_end(tenant)
        if len(self._refused_at) > _MAX_TENANTS:
            self._refused_at.popitem(last=False)
        return 0.0
