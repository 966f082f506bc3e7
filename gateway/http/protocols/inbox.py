"""The messages of a request that the application has not read yet.

Hypercorn's queue is bounded, and the message that the client has left must wait for room in it too.
An application that reads no body never makes room: then the connection, the application and the
memory of both stay for ever.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from hypercorn.asyncio import task_group
from hypercorn.config import Config

from gateway.http.protocols.turn_limit import TurnLimit

_MAX_MESSAGES = 10
"""Maximum messages that wait for the application; beyond, the connection is not read."""

Put = Callable[[Any], Awaitable[None]]


class Inbox:
    """The messages of one request. The last one never waits for room, and ends all waits."""

    __slots__ = ("_is_over", "_messages", "_reader", "_writers")

    def __init__(self) -> None:
        self._messages: deque[Any] = deque()
        self._is_over = False
        self._reader: asyncio.Future[None] | None = None
        self._writers: list[asyncio.Future[None]] = []

    async def put(self, message: Any) -> None:
        """Add a message; waits for room, and drops what comes after the end."""
        is_end = message["type"].endswith(".disconnect")
        while not is_end and len(self._messages) >= _MAX_MESSAGES and not self._is_over:
            waiter = asyncio.get_running_loop().create_future()
            self._writers.append(waiter)
            await waiter
        if self._is_over:
            return
        self._messages.append(message)
        self._is_over = is_end
        if is_end:
            self._wake_writers()
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> Any:
        """Return the next message; after the last one, the last one again."""
        while not self._messages:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if self._is_over and len(self._messages) == 1:
            return self._messages[0]
        message = self._messages.popleft()
        self._wake_writers()
        return message

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for waiter in writers:
            if not waiter.done():
                waiter.set_result(None)


class AppTasks(task_group.TaskGroup):
    """Hypercorn's tasks of one connection, with an `Inbox` for each request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, starts: TurnLimit) -> None:
        """`starts` spreads the requests of all connections over turns of the loop."""
        super().__init__(loop)
        self._starts = starts

    async def spawn_app(self, app: Any, config: Config, scope: Any, send: Any) -> Put:
        """Start the application on a request; returns what takes the request's messages."""
        inbox = Inbox()
        await self._starts.enter()

        def call_soon(func: Callable[..., Any], *args: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(func(*args), self._loop).result()

        in_thread = partial(self._loop.run_in_executor, None)
        self.spawn(_handle, app, config, scope, inbox.get, send, in_thread, call_soon)
        return inbox.put


async def _handle(
    app: Any, config: Config, scope: Any, receive: Any, send: Any, *ways: Any
) -> None:
    """Run the application, as Hypercorn does; but one that is cut sends no empty 500."""
    try:
        await app(scope, receive, send, *ways)
    except Exception:
        await config.log.exception("Error in ASGI Framework")
    await send(None)
