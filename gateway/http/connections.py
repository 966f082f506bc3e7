"""Limits the number of connections, the time for a request's head, and the time to read an answer.

Hypercorn limits none of them, and keeps a connection whose client has left until its keep-alive
time is over. `BoundedConnection` replaces methods of Hypercorn's `TCPServer`; with a Hypercorn that
lacks one of them, `connection_class` logs a warning and returns Hypercorn's own class.
"""

import asyncio
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from ssl import SSLError
from typing import Any

import hypercorn
import orjson
from hypercorn.asyncio.tcp_server import MAX_RECV, TCPServer
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from gateway.http.errors import task_error_body
from gateway.http.protocols.choice import Protocols
from gateway.http.protocols.http2 import Http2, OpenStreams
from gateway.http.protocols.inbox import AppTasks
from gateway.http.protocols.pause import ClientLeft, has_client_left, n_unsent
from gateway.http.protocols.read_turns import ReadTurns
from gateway.http.protocols.stall import StallWatch
from gateway.http.protocols.turn_limit import TurnLimit
from gateway.metrics.counters import ConnectionCounts
from protocol.errors import ErrorCode, TaskError
from protocol.process.descriptors import descriptors
from protocol.process.log_pause import LogPause

logger = logging.getLogger(__name__)

_RESERVED = 128
"""File descriptors reserved for listeners, workers, logs, files and fetched media."""
_LEAST = 16
"""Minimum limit of connections, also where the process may open few files."""
_PIECE = 4096
"""Bytes of HTTP/2 that a connection handles in one turn of the loop: at most 455 frames of 40 us or
4,000 headers of 6 us each. More bytes of a head of HTTP/1.1 take turns, too."""
_SMALL_PIECE = 512
"""Connections with more bytes of HTTP/2 than this take turns; with fewer, none waits."""
_PREFACE = b"PRI "
_STARTS = 8
"""Maximum requests that begin in a turn of the loop. They take 0.3 to 2 ms each, for which streams
wait. Measured: 4 cost an eighth of the answers a second of 64 clients, 32 did not help streams."""
_BODY = orjson.dumps(
    task_error_body(TaskError(ErrorCode.UNAVAILABLE, "Too many connections are open"))
)
_GOODBYE_S = 0.1
"""Time for the server's own goodbye to leave."""
_REFUSAL_S = 1.0
"""Time for a refusal to reach its client."""
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)
Close = Callable[[], None]


class Connections:
    """The open connections of one server; idle ones are closed first."""

    def __init__(
        self, counts: ConnectionCounts, *, limit: int, head_s: float, send_s: float = 30.0
    ) -> None:
        self.head_s = head_s
        """Longest time from the first byte of a request to the end of its head."""
        self.send_s = send_s
        """Longest time in which a client may read nothing of the data that waits for it."""
        self._refusals_pause = LogPause()
        self._counts = counts
        self._limit = limit or max(_LEAST, descriptors() - _RESERVED)
        self._open: set[BoundedConnection] = set()
        self._idle: OrderedDict[BoundedConnection, None] = OrderedDict()
        """In the order in which they became idle."""
        self.is_retiring = False
        """Whether each connection ends with its next answer, because another process serves."""
        self.turns = ReadTurns()
        self.streams = OpenStreams()
        self.starts = TurnLimit(_STARTS)

    def enter(self, connection: "BoundedConnection") -> bool:
        """Count a new connection; returns False if it must be refused."""
        counts = self._counts
        if counts.n_open >= self._limit:
            if not self._idle:
                counts.n_refused += 1
                self._log_refusal()
                return False
            oldest, _ = self._idle.popitem(last=False)
            counts.n_closed_idle += 1
            _end_idle(oldest.loop, oldest.writer)
        counts.n_open += 1
        self._open.add(connection)
        self._idle[connection] = None
        return True

    def _log_refusal(self) -> None:
        """Log that new connections are refused, at most once a minute."""
        if not self._refusals_pause.take_turn():
            return
        logger.error(
            "connections refused",
            extra={
                "cause": f"{self._limit} are open, and each has a request",
                "action": "new ones get 503 until some end",
                "hint": "raise limits.connections, or `ulimit -n` and LimitNOFILE= if it is 0",
            },
        )

    @property
    def n_busy(self) -> int:
        """Number of connections that have a request."""
        return len(self._open) - len(self._idle)

    def has_room(self, n: int) -> bool:
        """Return whether `n` more may be open."""
        return self._counts.n_open + n <= self._limit

    def close_idle(self, *, new: bool = True) -> None:
        """Close the connections that have no request; without `new` not those that had none yet."""
        for connection in list(self._idle):
            if new or connection.has_asked:
                _end_idle(connection.loop, connection.writer)

    def retire(self) -> None:
        """End each connection with its next answer.

        Idle ones are not closed: a client may be sending its next request just now. They end, as
        always, after the keep-alive time.
        """
        self.is_retiring = True
        for connection in list(self._open):
            connection.retire()

    def leave(self, connection: "BoundedConnection") -> None:
        """Remove a connection that `enter` accepted."""
        self._counts.n_open -= 1
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def set_idle(self, connection: "BoundedConnection", *, idle: bool) -> None:
        """Record whether a connection is idle or has a request."""
        self._idle.pop(connection, None)
        if idle:
            self._idle[connection] = None


def _end_idle(loop: asyncio.AbstractEventLoop, writer: asyncio.StreamWriter) -> None:
    """Close an idle connection without waiting for its client, if all is on its way to it.

    TLS waits for its goodbye, too, which a client with idle connections sends when it reads again:
    on its next request, or never.
    """
    transport = writer.transport
    waits = transport.get_write_buffer_size() or n_unsent(writer.get_extra_info("socket"))
    writer.close()
    if not waits:
        loop.call_later(_GOODBYE_S, transport.abort)


class _KeepAlive:
    """Closes a connection that was idle for too long.

    It replaces Hypercorn's two tasks a connection, which take 3 KB and 30 objects.
    """

    __slots__ = ("_close", "_limit_s", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, close: Close) -> None:
        self._loop = loop
        self._limit_s = limit_s
        self._close = close
        self._timer: asyncio.TimerHandle | None = None

    async def restart(self, *_: object) -> None:
        """Start the timer; the arguments, which Hypercorn passes to its own task, are ignored."""
        await self.stop()
        self._timer = self._loop.call_later(self._limit_s, self._close)

    async def stop(self) -> None:
        """Stop the timer; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BoundedConnection(TCPServer):
    """Hypercorn's connection, counted and with a deadline for the head of each request."""

    _connections: Connections
    _deadline: asyncio.TimerHandle | None = None
    has_asked = False
    """Whether a request has come."""
    _is_idle = True
    _is_lost = False
    """Whether a write has found the connection closed."""
    _has_sent_goaway = False

    async def run(self) -> None:
        """Serve the connection to its end, or refuse it."""
        assert isinstance(self.config, ServerConfig)
        connections = self._connections = self.config.connections
        if not connections.enter(self):
            self.writer.write(_FULL)
            _end_idle(self.loop, self.writer)
            # With TLS it would have its descriptor until the client says goodbye, for 30 s.
            self.loop.call_later(_REFUSAL_S, self.writer.transport.abort)
            return
        end = partial(_end_idle, self.loop, self.writer)
        self.idle_task: Any = _KeepAlive(self.loop, self.config.keep_alive_timeout, end)
        self._unsent = StallWatch(self.loop, self.writer.transport, connections.send_s)
        try:
            await self._serve(connections.send_s)
        except BaseExceptionGroup as faults:
            _, others = faults.split(Exception)
            if others is not None:
                raise others from None
            cause = repr(faults.exceptions[0])
            logger.warning("connection failed", extra={"cause": cause, "action": "it is closed"})
        finally:
            self._end_deadline()
            self._unsent.stop()
            await self.idle_task.stop()  # the end of the last answer has restarted it
            connections.leave(self)
            self._forget_protocol()

    def _forget_protocol(self) -> None:
        """Drop the protocol, which refers to this connection, and its streams if it was cut."""
        chosen = getattr(vars(self).pop("protocol", None), "protocol", None)
        if isinstance(chosen, Http2):
            self._connections.streams.n -= len(chosen.streams)
            chosen.streams.clear()

    async def _serve(self, send_s: float) -> None:
        """Do what Hypercorn's `run` does, with our tasks and protocols."""
        sock = self.writer.get_extra_info("socket")
        tls = self.writer.get_extra_info("ssl_object")
        try:
            client = parse_socket_addr(sock.family, sock.getpeername())
            server = parse_socket_addr(sock.family, sock.getsockname())
            async with AppTasks(self.loop, self._connections.starts) as tasks:
                self._task_group = tasks
                self.protocol = Protocols(
                    self.app,
                    self.config,
                    self.context,
                    tasks,
                    ConnectionState(self.state),
                    tls is not None,
                    client,
                    server,
                    self.protocol_send,
                    tls.selected_alpn_protocol() if tls is not None else "http/1.1",
                    send_s=send_s,
                    has_left=lambda: self.reader.at_eof() or has_client_left(sock),
                    open_streams=self._connections.streams,
                    turns=self._connections.turns,
                )
                await self.protocol.initiate()
                await self.idle_task.restart(tasks, self._idle_timeout)
                await self._read_data()
        except OSError:
            pass
        finally:
            self._unsent.wrote(0)
            await self._close()

    async def protocol_send(self, event: Event) -> None:
        """Pass an event of the protocol on, and record whether the connection has a request."""
        if isinstance(event, RawData):
            await self._send(event.data)
            return
        if isinstance(event, Updated):
            self._is_idle = event.idle
            self.has_asked = self.has_asked or not event.idle
            self._end_deadline()
            self._connections.set_idle(self, idle=event.idle)
            if self._connections.is_retiring:
                self.retire()
        await super().protocol_send(event)

    async def _send(self, data: bytes) -> None:
        async with self.send_lock:
            if self._is_lost:  # asyncio would log a line for each further write
                await self.protocol.handle(Closed())
                return
            try:
                self.writer.write(data)
                self._unsent.wrote(len(data))
                await self.writer.drain()
            except (OSError, RuntimeError):
                self._is_lost = True
                await self.protocol.handle(Closed())

    def retire(self) -> None:
        """End with the next answer: HTTP/1.1 says `Connection: close`, HTTP/2 sends GOAWAY."""
        protocol = getattr(getattr(self, "protocol", None), "protocol", None)
        if isinstance(protocol, H11Protocol):
            protocol.keep_alive_requests = sys.maxsize  # beyond `keep_alive_max_requests`
        elif isinstance(protocol, H2Protocol) and self._is_idle and not self._has_sent_goaway:
            # Not earlier: h2 sends nothing on open streams after GOAWAY.
            self._has_sent_goaway = True
            self._task_group.spawn(self._send_goaway, protocol)

    async def _send_goaway(self, protocol: H2Protocol) -> None:
        """Name the last stream that was answered; a client sends any later one elsewhere."""
        protocol.connection.close_connection()
        await protocol.send(RawData(data=protocol.connection.data_to_send()))
        self.writer.close()

    async def _read_data(self) -> None:
        n_max = _PIECE  # until the first bytes show which protocol this is
        while not self.reader.at_eof():
            try:
                data = await self.reader.read(n_max)
            except (OSError, SSLError):
                break
            if data and self._is_idle and self._deadline is None:
                self._begin_deadline()
            try:
                await self._handle(data)
            except ClientLeft:
                break
            n_max = MAX_RECV if isinstance(self.protocol.protocol, H11Protocol) else _PIECE
        await self.protocol.handle(Closed())

    async def _handle(self, data: bytes) -> None:
        """Handle what was read: many frames of HTTP/2, or a long head, in a turn of their own."""
        turns = self._connections.turns
        if isinstance(self.protocol.protocol, Http2) or data.startswith(_PREFACE):
            if len(data) > _SMALL_PIECE:
                await turns.enter()
                if has_client_left(self.writer.get_extra_info("socket")):
                    raise ClientLeft
        elif len(data) > _PIECE and self._is_idle:
            await turns.enter()
        await self.protocol.handle(RawData(data))

    def _begin_deadline(self) -> None:
        # An HTTP/2 connection exchanges frames without a request, so it has no deadline.
        if isinstance(self.protocol.protocol, H11Protocol):
            self._deadline = self.loop.call_later(self._connections.head_s, self.writer.close)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class ServerConfig(hypercorn.Config):
    """Hypercorn's settings, with the connections of this server."""

    connections: Connections


def connection_class() -> type[TCPServer]:
    """Return `BoundedConnection`; Hypercorn's own, with a warning, if this one is not known."""
    names = ("_read_data", "_close", "protocol_send", "run", "_idle_timeout")
    if all(hasattr(TCPServer, name) for name in names):
        return BoundedConnection
    logger.warning(
        "connections are not limited",
        extra={
            "cause": "this version of Hypercorn is not known",
            "hint": "install the version that constraints.txt names",
        },
    )
    return TCPServer
