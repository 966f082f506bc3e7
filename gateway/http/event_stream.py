"""One response that is a stream of events: its late head, its pings and its send timeout.

The head is sent with the first event, so that a failure before it is a plain HTTP error. While no
event comes, comments are sent as pings, so that no proxy gives up during a queue wait or while a
long prompt is read.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Never

from starlette.types import Send

from gateway.api.reply import ResponseFormatter
from gateway.api.results.figures import MANY, n_alternatives
from gateway.api.sse import END, PING
from gateway.http.bodies.body import ClientGone, in_thread
from gateway.http.direct_write import DirectWriter
from gateway.http.route_headers import RouteNotice
from gateway.pool.tasks.stream import Resumed, TaskStream, Write
from protocol.wire.messages import Delta, Done, Progress, Started

EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

_MANY_BIASES = 1_000
"""Logit biases that make the end of a choice long to write; for 8,192 it takes 2 to 6 ms."""
_APART_S = 0.01
"""Pause between two events that are ready at once, for the API whose old clients take each chunk of
a body for one event, in seconds. Without it an HTTP library joins the two before it is asked for
the next chunk, and such a client fails. A client that keeps up never meets the pause."""


class EventStream:
    """Writes frames to one client; `keep_alive` runs beside the writers."""

    def __init__(
        self,
        send: Send,
        ping_interval_s: float,
        send_timeout_s: float,
        headers: Callable[[], Mapping[str, str]] = dict,
        writer: DirectWriter | None = None,
    ) -> None:
        self._send = send
        self._headers = headers
        """What is known of the request when the first frame is sent."""
        self._writer = writer
        self._ping_interval_s = ping_interval_s
        self._send_timeout_s = send_timeout_s
        self._clock = asyncio.get_running_loop().time
        self._opening = asyncio.Lock()
        self._written_at = self._clock()
        self._sending_since = 0.0
        self.is_open = False
        self._is_direct = False
        """Whether the writer has written: then nothing but its buffer keeps it from doing so."""

    async def open(self) -> None:
        """Send status and headers, once."""
        if self.is_open:
            return
        async with self._opening:
            if not self.is_open:
                own = [(name.encode(), value.encode()) for name, value in self._headers().items()]
                start = {"type": "http.response.start", "status": 200}
                await self._send({**start, "headers": [*EVENT_STREAM_HEADERS, *own]})
                self.is_open = True

    async def write(self, frames: bytes) -> None:
        """Send events, each as a chunk of its own: some clients read one event a chunk."""
        start, end = 0, frames.find(END) + len(END)
        while start + len(END) <= end < len(frames):
            await self._write(frames[start:end])
            await asyncio.sleep(0)  # what is written in one turn of the loop leaves in one packet
            start, end = end, frames.find(END, end) + len(END)
        if start < len(frames):
            await self._write(frames[start:] if start else frames)

    async def _write(self, frame: bytes) -> None:
        if not self.is_open:
            await self.open()
        now = self._clock()
        writer = self._writer
        if writer is not None and writer.is_free and writer.is_in_body:
            self._is_direct = True
            writer.write(_chunk(frame))
        else:
            self._sending_since = now
            await self._send({"type": "http.response.body", "body": frame, "more_body": True})
            self._sending_since = 0.0
            now = self._clock()
        self._written_at = now

    @property
    def is_free(self) -> bool:
        """Whether `prepare` may be called: nothing has to wait, neither does the client."""
        writer = self._writer
        return self._is_direct and not self._sending_since and writer is not None and writer.is_free

    def prepare(self, frames: Sequence[bytes]) -> Write:
        """Return what sends single events together, in this turn of the loop."""
        assert self._writer is not None
        self._written_at = self._clock()
        return self._writer.write, b"".join([_chunk(frame) for frame in frames if frame])

    async def finish(self) -> None:
        """End the body; without this call the client sees a broken stream."""
        await self.open()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def keep_alive(self) -> Never:
        """Send pings while no event comes; raise `ClientGone` if a write takes too long."""
        while True:
            delay_s = self._due() - self._clock()
            if delay_s > 0:
                await asyncio.sleep(min(delay_s, self._send_timeout_s))
            elif self._sending_since:
                raise ClientGone
            else:
                await self.comment(PING)

    def _due(self) -> float:
        if self._sending_since:
            return self._sending_since + self._send_timeout_s
        return self._written_at + (self._ping_interval_s or math.inf)

    async def comment(self, frame: bytes) -> None:
        """Send a comment; raises `ClientGone` if that takes too long."""
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await self.write(frame)
        except TimeoutError as error:
            raise ClientGone from error


class ChoiceWriter:
    """Writes one choice to the client as it comes.

    More of the same text is written in the turn of the loop in which it came, all else by `run`.
    """

    __slots__ = ("_events", "_index", "_notice", "_part", "_reply", "_stream")

    def __init__(
        self,
        index: int,
        stream: TaskStream,
        reply: ResponseFormatter,
        events: EventStream,
        notice: RouteNotice | None = None,
    ) -> None:
        self._index = index
        self._stream = stream
        self._reply = reply
        self._events = events
        self._notice = notice
        """What names the workers to the client; None if it takes no comments."""
        self._part = ""
        """The part of the answer that was written last."""

    async def run(self) -> None:
        """Write it to its end."""
        index, reply, events = self._index, self._reply, self._events
        while True:
            message = await self._stream.receive(self._take)
            match message:
                case Delta():
                    self._part = _last_part(message) or self._part
                    frames = await in_thread(_is_long(message), reply.delta, index, message)
                    await events.write(frames)
                    if reply.is_read_by_chunk and self._stream.has_mail:
                        await asyncio.sleep(_APART_S)
                case Started():
                    reply.started(index, message)
                    await events.open()
                    await self._tell()
                case Resumed():
                    await self._tell()
                case Progress():
                    await events.write(reply.progress(index, message))
                case Done():
                    is_long = len(message.biases) > _MANY_BIASES
                    await events.write(await in_thread(is_long, reply.done, index, message))
                    return

    async def _tell(self) -> None:
        """Send the worker's name, unless the client has it already."""
        if self._notice is not None and (comment := self._notice.comment()):
            await self._events.write(comment)

    def _take(self, deltas: Sequence[Delta]) -> Write | None:
        """Format deltas at once if they go on with the same part and nothing has to wait."""
        index, reply, events = self._index, self._reply, self._events
        if not events.is_free or (reply.is_read_by_chunk and len(deltas) > 1):
            return None
        for delta in deltas:
            if not _is_more(self._part, delta):
                return None
        return events.prepare([reply.delta(index, delta) for delta in deltas])


def _chunk(frame: bytes) -> bytes:
    """Return a chunk of a body without a length, as HTTP/1.1 has it."""
    return b"%x\r\n%b\r\n" % (len(frame), frame)


def _is_long(delta: Delta) -> bool:
    """Return whether it takes long to write: a prompt, or what a slow client has not taken."""
    probs = (*delta.probs, *delta.prompt)
    return bool(probs) and n_alternatives(probs) > MANY


def _last_part(delta: Delta) -> str:
    """Name the part of an answer that a delta ends with; empty if it has nothing."""
    if delta.tool_calls:
        return "calls"
    return "text" if delta.text else "reasoning" if delta.reasoning else ""


def _is_more(part: str, delta: Delta) -> bool:
    """Return whether a delta goes on with this part alone: then it is one event, in every API."""
    if delta.tool_calls:
        return False
    return not delta.reasoning if part == "text" else part == "reasoning" and not delta.text
