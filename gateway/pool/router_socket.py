"""The ROUTER socket: bytes of workers in, bytes to workers out. It knows no messages.

The loop watches ZeroMQ's file descriptor itself: `zmq.asyncio` costs 17 us a message, this 1 us.
That descriptor is edge-triggered and also swallowed by a send, so both ends look again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import zmq

from protocol.errors import ConfigError
from protocol.wire.codec import MAX_FRAME_BYTES

logger = logging.getLogger(__name__)

_BURST = 256
"""Frames read in one turn of the loop, so that a flood cannot starve HTTP."""


class RouterSocket:
    """Binds, drains, sends; tells when some peer has gone."""

    def __init__(
        self, on_frame: Callable[[bytes, bytes], None], on_disconnect: Callable[[], None]
    ) -> None:
        self._on_frame = on_frame
        self._on_disconnect = on_disconnect
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._endpoints: tuple[str, ...] = ()
        self._polled: list[tuple[zmq.Socket[bytes], int]] = []
        self._monitor: zmq.Socket[bytes] | None = None
        self._again: asyncio.Handle | None = None

    def open(self, endpoints: Sequence[str]) -> None:
        """Bind to the endpoints; raises `ConfigError` with the one that cannot be had."""
        for endpoint in endpoints:
            if urlsplit(endpoint).scheme not in ("ipc", "inproc"):
                raise ConfigError(f"gateway.bind: {endpoint}: only ipc:// is safe without keys")
        self._context = zmq.Context(io_threads=1)
        socket = self._socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.LINGER, 0)
        # A peer that hangs up while its frames wait behind a full receive queue, with heartbeats
        # on, ends the process: libzmq 4.3.5 asserts in stream_engine_base.cpp. No bound, no fault.
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3000)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._polled = [(socket, zmq.POLLIN)]
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._endpoints = tuple(endpoints)
        self.bind()
        loop = asyncio.get_running_loop()
        loop.add_reader(_descriptor(socket), self.drain)
        loop.add_reader(_descriptor(self._monitor), self._read_monitor)
        # ZeroMQ wakes only a reader that has once found nothing.
        self._read_monitor()
        self._look_again()

    def bind(self) -> None:
        """Let workers dial the endpoints; raises `ConfigError` with the one that cannot be had.

        A path is taken over from a process that has bound it; its connections stay. (`unbind` would
        end them: to ZeroMQ they belong to the listener.)
        """
        assert self._socket is not None
        for endpoint in self._endpoints:
            try:
                self._socket.bind(endpoint)
            except zmq.ZMQError as error:
                raise ConfigError(f"gateway.bind: {endpoint}: {error.strerror}") from error

    def close(self) -> None:
        """Close at once; idempotent."""
        socket, self._socket = self._socket, None
        if socket is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(_descriptor(socket))
        if self._again is not None:
            self._again.cancel()
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
        """Hand out every frame that is here."""
        while self._socket is not None and self._has_input():
            self.drain()

    def drain(self) -> None:
        """Hand out the frames that are here, up to a burst."""
        socket = self._socket
        if socket is None:
            return
        if self._again is not None:
            self._again.cancel()
            self._again = None
        try:
            for _ in range(_BURST):
                identity = socket.recv(zmq.NOBLOCK)
                part = socket.recv(zmq.NOBLOCK, copy=False)
                if part.more:
                    _skip_rest(socket)  # no worker of ours writes more than one part
                else:
                    self._on_frame(identity, part.bytes)
                if self._socket is None or not self._has_input():
                    return  # there is nothing left: the descriptor will fire again
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

    def _read_monitor(self) -> None:
        gone = False
        while self._monitor is not None:
            try:
                self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            gone = True
        if gone:
            self._on_disconnect()


def _skip_rest(socket: "zmq.Socket[bytes]") -> None:
    while socket.recv(zmq.NOBLOCK, copy=False).more:
        pass


def _descriptor(socket: "zmq.Socket[bytes]") -> int:
    return int(socket.getsockopt(zmq.FD))
