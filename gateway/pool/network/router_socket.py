"""The ROUTER socket: sends and receives frames as bytes; it does not decode messages.

The loop watches ZeroMQ's file descriptor itself: `zmq.asyncio` costs 17 us a message, this 1 us.
The descriptor is edge-triggered, and a send may take its event: so input is looked for again after
each send and each read.
"""

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Sequence

import zmq

from gateway.pool.network.access import PeerAccess
from gateway.pool.network.pending_connections import EVENTS, PendingConnections
from gateway.pool.network.shared_listener import can_share, listen
from protocol.endpoint import Endpoint, bound
from protocol.errors import ConfigError
from protocol.wire.codec import MAX_FRAME_BYTES

logger = logging.getLogger(__name__)

_BURST = 256
"""Frames or events read in one turn of the loop, so that a flood cannot starve HTTP."""
_BURST_S = 0.003
"""Time for which frames are read in one turn: as much again goes into writing what they bring."""
_MONITOR = "inproc://monitor"
_RECHECK_S = 0.05
"""Seconds until an end is reported again: libzmq may not have removed the route before that."""
_MESSAGE_HEARTBEATS = 3
"""Time for a message to arrive whole, in heartbeats of workers: ZeroMQ takes a peer for dead from
which no whole message came for so long, and no heartbeat overtakes a message."""
_MESSAGE_MIN_S = 3.0
"""Seconds that a message has at least."""
_DRAINING_S = 0.1
"""Maximum seconds of `drain_all`. ZeroMQ reads from peers in turn, so each was read by then."""


class RouterSocket:
    """Binds, receives, sends, and reports connections that have ended."""

    def __init__(
        self,
        on_frame: Callable[[bytes, zmq.Frame], None],
        on_disconnect: Callable[[set[int]], None],
        access: PeerAccess,
        heartbeat_s: float = 1.0,
    ) -> None:
        """`heartbeat_s`: seconds between two heartbeats of a worker."""
        self._on_frame = on_frame
        self._on_disconnect = on_disconnect
        self._access = access
        self._message_s = max(_MESSAGE_MIN_S, _MESSAGE_HEARTBEATS * heartbeat_s)
        self._pending = PendingConnections(access.handshakes)
        self._ended: set[int] = set()
        """Descriptors of connections that have ended."""
        self._tell: asyncio.Handle | None = None
        self.has_tcp = False
        self.ports: set[int] = set()
        """Ports of the tcp endpoints."""
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._endpoints: tuple[Endpoint, ...] = ()
        self._polled: list[tuple[zmq.Socket[bytes], int]] = []
        self._monitor: zmq.Socket[bytes] | None = None
        self._again: asyncio.Handle | None = None

    def open(self, endpoints: Sequence[str], *, joins: bool = False) -> None:
        """Bind to the endpoints; raises `ConfigError` with the one that cannot be had.

        With `joins` another gateway of this pool may listen at the tcp endpoints too.
        """
        parsed = bound(endpoints, has_keys=self._access.has_keys)
        self.has_tcp = any(endpoint.is_tcp for endpoint in parsed)
        if self.has_tcp:
            self._access.read()
        self._context = zmq.Context(io_threads=1)
        if self.has_tcp:
            self._access.open(self._context)
        socket = self._socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.LINGER, 0)
        # A peer that hangs up while its frames wait behind a full receive queue, with heartbeats
        # on, ends the process: libzmq 4.3.5 asserts in stream_engine_base.cpp. No bound, no fault.
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(self._message_s * 1e3))
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._polled = [(socket, zmq.POLLIN)]
        self._monitor = _monitor_of(socket, self._context)
        self._endpoints = parsed
        self._bind_all(parsed, joins=joins)
        loop = asyncio.get_running_loop()
        loop.add_reader(_descriptor(socket), self.drain)
        loop.add_reader(_descriptor(self._monitor), self._read_monitor)
        # ZeroMQ wakes only a reader that has once found nothing.
        self._read_monitor()
        self._look_again()

    def take_back(self) -> None:
        """Let workers dial the paths again that another process took over; raises `ConfigError`.

        A tcp endpoint was shared with that process, which has ended.
        """
        self._bind_all(
            [endpoint for endpoint in self._endpoints if not endpoint.is_tcp], joins=False
        )

    def _bind_all(self, endpoints: Sequence[Endpoint], *, joins: bool) -> None:
        """Listen at each endpoint.

        A path is taken over from a process that has bound it; its connections stay. (`unbind` would
        end them: to ZeroMQ they belong to the listener.)
        """
        assert self._socket is not None
        for endpoint in endpoints:
            self._bind(self._socket, endpoint, joins=joins)

    def _bind(self, socket: "zmq.Socket[bytes]", endpoint: Endpoint, *, joins: bool) -> None:
        self._access.secure(socket, endpoint)
        try:
            if can_share(endpoint):
                socket.setsockopt(zmq.USE_FD, listen(endpoint, joins=joins).detach())
            socket.bind(endpoint.text)
            socket.setsockopt(zmq.USE_FD, -1)
        except (OSError, zmq.ZMQError) as error:
            hint = ": name an address of this host" if error.errno == errno.ENODEV else ""
            raise ConfigError(f"bind '{endpoint.text}': {error.strerror}{hint}") from error
        if endpoint.is_tcp:
            where = socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
            self.ports.add(int(where.rpartition(":")[2]))
            logger.info("listening for workers", extra={"url": where})

    def close(self) -> None:
        """Close at once; idempotent."""
        socket, self._socket = self._socket, None
        if socket is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(_descriptor(socket))
        for handle in (self._again, self._tell):
            if handle is not None:
                handle.cancel()
        self._access.close()
        if self._monitor is not None:
            loop.remove_reader(_descriptor(self._monitor))
            socket.disable_monitor()
            self._monitor.close(linger=0)
            self._monitor = None
        socket.close(linger=0)
        if self._context is not None:
            self._context.destroy(linger=0)

    def send(self, identity: bytes, data: bytes) -> bool:
        """Send a frame; false means that the peer is gone or does not read."""
        if self._socket is None:
            return False
        try:
            self._socket.send_multipart((identity, data), zmq.NOBLOCK, copy=True)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        self._look_again()
        return True

    def drain_all(self) -> None:
        """Hand out every frame that is here; of a flood that does not end, the beginning."""
        until = time.monotonic() + _DRAINING_S
        while self._socket is not None and self._has_input() and time.monotonic() < until:
            self.drain()

    def drain(self) -> None:
        """Hand out the frames that are here, up to a burst."""
        socket = self._socket
        if socket is None:
            return
        if self._again is not None:
            self._again.cancel()
            self._again = None
        until = time.monotonic() + _BURST_S
        try:
            for _ in range(_BURST):
                identity = socket.recv(zmq.NOBLOCK)
                part = socket.recv(zmq.NOBLOCK, copy=False)
                if part.more:
                    _skip_rest(socket)  # no worker of ours writes more than one part
                else:
                    self._on_frame(identity, part)
                if self._socket is None or not self._has_input():
                    return  # there is nothing left: the descriptor will fire again
                if time.monotonic() > until:
                    break
        except zmq.Again:
            return  # a wake-up for nothing
        except BaseException:
            self._look_again()  # the descriptor would not fire for the rest
            raise
        self._look_again()

    def _look_again(self) -> None:
        if self._again is None:
            self._again = asyncio.get_running_loop().call_soon(self.drain)

    def _has_input(self) -> bool:
        # No Python function, where `getsockopt` has two and running into `zmq.Again` five.
        return bool(zmq.zmq_poll(self._polled, 0))

    def mark_accepted(self, frame: zmq.Frame) -> None:
        """Note that the connection of this frame has delivered one."""
        if self.has_tcp:
            self._read_monitor()
            self._pending.first_frame(int(frame.get(zmq.SRCFD)))

    def _read_monitor(self) -> None:
        for _ in range(_BURST):
            if self._monitor is None:
                return
            try:
                head, endpoint = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            fd = self._pending.event(head, endpoint)
            if fd >= 0:
                self._ended.add(fd)
                if self._tell is None:
                    self._tell = asyncio.get_running_loop().call_soon(self._tell_ended)
        asyncio.get_running_loop().call_soon(self._read_monitor)

    def _tell_ended(self) -> None:
        self._tell = None
        self.drain_all()  # a connection that has said something is no failed handshake
        ended, self._ended = self._ended, set()
        self._pending.settle(asyncio.get_running_loop().time())
        if ended:
            self._on_disconnect(ended)
            asyncio.get_running_loop().call_later(_RECHECK_S, self._on_disconnect, ended)


def _skip_rest(socket: "zmq.Socket[bytes]") -> None:
    while socket.recv(zmq.NOBLOCK, copy=False).more:
        pass


def _monitor_of(
    socket: "zmq.Socket[bytes]", context: "zmq.Context[zmq.Socket[bytes]]"
) -> "zmq.Socket[bytes]":
    """Return the socket that tells of connections.

    If 2,000 of its events could fill it, ZeroMQ's thread would wait for them to be read, and
    `close` for ever for that thread.
    """
    monitor = context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.RCVHWM, 0)
    socket.monitor(_MONITOR, EVENTS)
    monitor.connect(_MONITOR)
    return monitor


def _descriptor(socket: "zmq.Socket[bytes]") -> int:
    return int(socket.getsockopt(zmq.FD))
