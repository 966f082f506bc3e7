"""Runs the handler of a kept stream: it writes into the session, and its client is one reader.

So neither a client that hangs up nor one that is slow ends the answer or holds it up.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.types import Message, Receive, Scope, Send

from gateway.http.bodies.body import ClientGone
from gateway.http.direct_write import DIRECT_WRITER
from gateway.http.disconnect import disconnected, guarded
from gateway.http.event_stream import EVENT_STREAM_HEADERS
from gateway.replay.session import OffsetLost, StreamSession
from gateway.replay.sessions import StreamSessions
from protocol.config.config import GatewayConfig
from protocol.errors import InvalidRequest

CONVERSATION_HEADER = b"x-conversation-id"

Handler = Callable[[Receive, Send, Callable[[], None]], Awaitable[None]]
"""Answers to a `receive` and a `send`, and calls the third when it has its model."""

_EVENT = re.compile(rb".*?\n\n|.+", re.DOTALL)
_CANCELLED = "request cancelled by a stop while the model was loading"


def conversation_of(scope: Scope) -> str:
    """Return the conversation id in the head of a request; empty if it has none."""
    found = b""
    for name, value in scope["headers"]:
        if name == CONVERSATION_HEADER:
            found = value
    return found.decode("utf-8", "replace")


class StreamKeeper:
    """Keeps the streams of requests that ask for it."""

    def __init__(self, config: GatewayConfig) -> None:
        self.sessions = StreamSessions(config.limits)
        self._send_timeout_s = min(config.limits.send_timeout_s, config.timeout_s)

    def wants(self, scope: Scope) -> bool:
        """Return whether the stream of a request is to be kept."""
        return self.sessions.is_on and bool(conversation_of(scope))

    async def keep(self, handler: Handler, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a handler answer into a new session, from which the client is served.

        Raises `TaskError` if there is no room, what the handler raises, and at its end `ClientGone`
        if the client has left before.
        """
        session = self.sessions.begin(scope["key"], conversation_of(scope))
        scope[DIRECT_WRITER] = None

        async def take(message: Message) -> None:
            self.sessions.take(session, message)

        client = asyncio.ensure_future(self._serve(session, receive, send))
        try:
            await self._run(handler, session, take)
            if not await client:
                raise ClientGone
            if session.head is None:  # it was ended before its first byte
                await self.send_to(send, session, 0)
        finally:
            client.cancel()

    async def _run(self, handler: Handler, session: StreamSession, take: Send) -> None:
        async def receive() -> Message:
            await session.wait_stopped()
            return {"type": "http.disconnect"}

        try:
            await handler(receive, take, session.loaded)
        except ClientGone:
            if session.is_loading:
                raise InvalidRequest(_CANCELLED) from None
        finally:
            self.sessions.over(session)

    async def _serve(self, session: StreamSession, receive: Receive, send: Send) -> bool:
        """Serve the client of the request; false if it leaves."""
        work = self.send_to(send, session, 0, is_first=True)
        try:
            await guarded(work, disconnected(receive))
        except ClientGone:
            return False
        return True

    async def send_to(
        self, send: Send, session: StreamSession, offset: int, *, is_first: bool = False
    ) -> None:
        """Send a session from an offset to its end.

        The first reader, whose request it is, gets its own head, and each event as a chunk.
        A session that is neither whole nor stopped ends as broken. Raises `ClientGone` if the
        client takes nothing for too long.
        """
        with self.sessions.reading(session):
            head: Message | None = _head()
            if is_first:
                await session.wait_for_head()
                head = session.head
            if head is None:
                return
            await self._send(send, head)
            with suppress(OffsetLost):
                while data := await session.read(offset):
                    for part in _EVENT.findall(data) if is_first else (data,):
                        await self._send(send, _body(part, more_body=True))
                    offset += len(data)
                if session.is_whole or session.is_stopped:
                    await self._send(send, _body(b"", more_body=False))

    async def _send(self, send: Send, message: Message) -> None:
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await send(message)
        except TimeoutError as error:
            raise ClientGone from error


def _head() -> Message:
    return {"type": "http.response.start", "status": 200, "headers": [*EVENT_STREAM_HEADERS]}


def _body(data: bytes, *, more_body: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more_body}
