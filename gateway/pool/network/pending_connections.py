"""Connections over tcp that have not delivered a frame yet, followed by ZeroMQ's socket monitor.

Its events name the descriptor at the beginning and at the end of a connection, and the failure of a
handshake right before the end. Only one I/O thread writes them, so they come in order.
"""

import struct
from dataclasses import dataclass

import zmq

from gateway.pool.network.failed_handshakes import FailedHandshakes
from gateway.pool.network.peer_socket import peer_address

EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""Without `HANDSHAKE_FAILED_PROTOCOL`: libzmq 4.3.5 also sends it for a CURVE message that was
damaged on the way, and sending it sets `errno` to `EAGAIN`, for which the connection is kept and
read no more. If the peer then hangs up, the next heartbeat ends the process (`Assertion failed:
!_io_error` in stream_engine_base.cpp). Without the event such a connection ends at once."""
_NO_EVENT = (
    "protocol",
    "it came without CURVE keys, or has another public key for this gateway, or does not speak "
    "ZMTP 3",
)
"""Kind and cause of an end that no event explains."""


@dataclass(slots=True)
class PendingConnection:
    """A connection until its first frame, or until its end."""

    fd: int
    address: str
    has_spoken: bool = False


class PendingConnections:
    """All connections that have not delivered a frame."""

    def __init__(self, handshakes: FailedHandshakes) -> None:
        self._handshakes = handshakes
        self._open: dict[int, PendingConnection] = {}
        self._ended: list[tuple[PendingConnection, str, str]] = []
        """Those that ended without a frame so far, with kind and cause."""
        self._kind, self._cause = "", ""

    def event(self, head: bytes, endpoint: bytes) -> int:
        """Take an event of the monitor; return the descriptor of a connection that ended, or -1."""
        kind, value = struct.unpack("=Hi", head)
        if kind == zmq.EVENT_ACCEPTED:
            if endpoint.startswith(b"tcp:"):
                self._open[value] = PendingConnection(value, peer_address(value))
        elif kind == zmq.EVENT_DISCONNECTED:
            self._end(value)
            return int(value)
        else:
            self._kind, self._cause = _failure(kind)
        return -1

    def first_frame(self, fd: int) -> None:
        """Note the first frame of a connection."""
        if self._open.pop(fd, None) is not None:
            return
        for connection, _, _ in self._ended:
            connection.has_spoken = connection.has_spoken or connection.fd == fd

    def settle(self, now: float) -> None:
        """Report those that ended; to be called when all their frames are read."""
        ended, self._ended = self._ended, []
        for connection, kind, cause in ended:
            if not connection.has_spoken:
                self._handshakes.failed(connection.address, kind, cause, now)

    def _end(self, fd: int) -> None:
        connection = self._open.pop(fd, None)
        kind, cause = (self._kind, self._cause) if self._kind else _NO_EVENT
        self._kind = self._cause = ""
        if connection is not None and kind != "refused":
            self._ended.append((connection, kind, cause))


def _failure(event: int) -> tuple[str, str]:
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "refused", "logged by ZAP already"
    return "unfinished", "it hung up, came without keys, or said nothing for too long"
