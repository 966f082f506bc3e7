"""One response that is a stream of events: its late head, its pings and its send timeout.

The head is sent with the first event, so that a failure before it is a plain HTTP error. While no
event comes, comments are sent as pings, so that no proxy gives up during a queue wait or while a
long prompt is read.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Never

from starlette.types import Send

from gateway.http.body import ClientGone
from gateway.http.direct_write import DirectWriter
from gateway.http.sse import END, PING

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


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

    async def open(self) -> None:
        """Send status and headers, once."""
        if self.is_open:
            return
        async with self._opening:
            if not self.is_open:
                own = [(name.encode(), value.encode()) for name, value in self._headers().items()]
                start = {"type": "http.response.start", "status": 200}
                await self._send({**start, "headers": [*_HEADERS, *own]})
                self.is_open = True

    async def write(self, frames: bytes) -> None:
        """Send events, each as a chunk of its own: some clients read one event a chunk."""
        end = frames.find(END) + len(END)
        while len(END) <= end < len(frames):
            await self._write(frames[:end])
            await asyncio.sleep(0)  # what is written in one turn of the loop leaves in one packet
            frames = frames[end:]
            end = frames.find(END) + len(END)
        if frames:
            await self._write(frames)

    async def _write(self, frame: bytes) -> None:
        if not self.is_open:
            await self.open()
        now = self._clock()
        if self._writer is None or not self._writer.write(frame):
            self._sending_since = now
            await self._send({"type": "http.response.body", "body": frame, "more_body": True})
            self._sending_since = 0.0
            now = self._clock()
        self._written_at = now

    async def finish(self) -> None:
        """End the body as it should end; a stream that is not finished ends as broken."""
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
                await self._ping()

    def _due(self) -> float:
        if self._sending_since:
            return self._sending_since + self._send_timeout_s
        return self._written_at + (self._ping_interval_s or math.inf)

    async def _ping(self) -> None:
        await self.comment(PING)

    async def comment(self, frame: bytes) -> None:
        """Send a comment; raises `ClientGone` if that takes too long."""
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await self.write(frame)
        except TimeoutError as error:
            raise ClientGone from error
