"""HTTP/2 in which a faulty stream ends alone; the connection and its other streams stay.

Hypercorn ends a connection, and all streams of a proxy with it, at data for a request that was
answered before its body had come, at a path that is no ASCII, and at frames of priority. A stream
without room in its window waits for ever there, also after the client has left.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

from h2.errors import ErrorCodes
from h2.events import DataReceived, PriorityUpdated, RequestReceived
from h2.events import Event as HttpEvent
from h2.exceptions import ProtocolError
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Body, EndBody
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import BUFFER_HIGH_WATER, H2Protocol

from gateway.http.protocols.read_turns import ReadTurns

_MAX_DROPPED = 64 * 1024 * 1024
"""Bytes of bodies of answered requests that one connection may send; beyond, streams are reset."""


_MAX_STREAMS = 4096
"""Open streams of all connections together; beyond it, a connection with a stream gets no more.
Each takes 20 KB: 15,000 with a window of zero, which need no key, took 370 MB and stopped all for
3 s at each collection of garbage."""


class OpenStreams:
    """Counts the open streams of all connections of a server."""

    def __init__(self) -> None:
        self.n = 0


class Http2(H2Protocol):
    """Hypercorn's HTTP/2 connection."""

    send_s = 30.0
    """Longest time for which a client may give a waiting answer no room."""
    open_streams: OpenStreams
    turns: ReadTurns
    _n_dropped = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadlines: dict[int, asyncio.Timeout] = {}

    async def handle(self, event: Event) -> None:
        """Handle an event; at the end of the connection, end every wait for room."""
        if isinstance(event, RawData):
            await self._read(event.data)
            return
        await super().handle(event)
        if isinstance(event, Closed):
            for buffer in list(self.stream_buffers.values()):
                await buffer.close()

    async def _read(self, data: bytes) -> None:
        """Do what Hypercorn does with data, and measure the part that lets nothing else run.

        No count tells it: a byte can be a header, and a head for a stream that was reset is decoded
        without an event.
        """
        began_s = time.thread_time()
        try:
            events = self.connection.receive_data(data)
        except ProtocolError:
            await self._flush()
            await self.send(Closed())
            return
        finally:
            self.turns.note(time.thread_time() - began_s)
        await self._handle_events(events)

    async def stream_send(self, event: StreamEvent) -> None:
        """Send a part of an answer; a stream whose client makes no room for it is reset."""
        if not isinstance(event, Body | EndBody):
            await super().stream_send(event)
            return
        try:
            async with asyncio.timeout(self.send_s) as deadline:
                self._deadlines[event.stream_id] = deadline
                for part in _parts(event):
                    await super().stream_send(part)
        except TimeoutError:
            await self._give_up(event.stream_id, ErrorCodes.CANCEL)
        finally:
            self._deadlines.pop(event.stream_id, None)

    async def _send_data(self, stream_id: int) -> None:
        if self.stream_buffers[stream_id].buffer and self._is_without_room(stream_id):
            # Hypercorn would wake the tasks that wait for the buffer, though nothing was sent.
            self.priority.block(stream_id)
            return
        await super()._send_data(stream_id)
        deadline = self._deadlines.get(stream_id)
        if deadline is not None and not deadline.expired():
            deadline.reschedule(asyncio.get_running_loop().time() + self.send_s)

    def _is_without_room(self, stream_id: int) -> bool:
        if stream_id not in self.streams:
            return False  # it was reset, so nothing may wait for its client
        try:
            return self.connection.local_flow_control_window(stream_id) <= 0
        except ProtocolError:
            return False  # it has ended, which sending finds out

    async def _handle_events(self, events: Sequence[HttpEvent]) -> None:
        for event in events:
            if isinstance(event, DataReceived) and event.stream_id not in self.streams:
                await self._drop(event)
                continue
            await super()._handle_events([event])
            if isinstance(event, RequestReceived):
                await asyncio.sleep(0)  # a turn of the loop starts one request, as of HTTP/1.1
        await self._flush()

    async def _drop(self, event: DataReceived) -> None:
        """Drop what comes for a request that was answered: its client may send it to the end."""
        length = event.flow_controlled_length or 0
        self._n_dropped += length
        if self._n_dropped > _MAX_DROPPED:
            await self._give_up(event.stream_id, ErrorCodes.NO_ERROR)
        elif length:
            self.connection.acknowledge_received_data(length, event.stream_id)

    async def _create_stream(self, request: RequestReceived) -> None:
        head = dict(request.headers or ())
        method, path = head.get(b":method", b""), head.get(b":path", b"")
        if not (method.isascii() and path.isascii() and path):
            await self._give_up(request.stream_id, ErrorCodes.PROTOCOL_ERROR)
        elif method.upper() == b"CONNECT":
            await self._give_up(request.stream_id, ErrorCodes.CONNECT_ERROR)
        elif self.streams and self.open_streams.n >= _MAX_STREAMS:
            await self._give_up(request.stream_id, ErrorCodes.REFUSED_STREAM)
        else:
            self.open_streams.n += 1
            await super()._create_stream(request)

    async def _close_stream(self, stream_id: int) -> None:
        self.open_streams.n -= stream_id in self.streams
        await super()._close_stream(stream_id)

    async def _priority_updated(self, event: PriorityUpdated) -> None:
        """Ignore it, as RFC 9113 allows: each would take memory, also for streams that are over."""

    async def _give_up(self, stream_id: int, code: ErrorCodes) -> None:
        try:
            self.connection.reset_stream(stream_id, code)
        except ProtocolError:
            return  # it has ended meanwhile
        await self._close_stream(stream_id)
        if (buffer := self.stream_buffers.get(stream_id)) is not None:
            await buffer.close()
            self.priority.unblock(stream_id)
            await self.has_data.set()  # the sending task clears it
        await self._flush()


def _parts(event: Body | EndBody) -> Iterable[StreamEvent]:
    """Split an answer: the buffer of a stream takes a part as a whole, however large it is."""
    if isinstance(event, EndBody) or len(event.data) <= BUFFER_HIGH_WATER:
        return (event,)
    return (
        Body(event.stream_id, event.data[at : at + BUFFER_HIGH_WATER])
        for at in range(0, len(event.data), BUFFER_HIGH_WATER)
    )
