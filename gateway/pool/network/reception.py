"""Decides about a worker's `Hello`: refuse it, or let it wait because its name is taken."""

import logging

import zmq

from gateway.pool.network.access import PeerAccess
from gateway.pool.network.name_queue import NameQueue, WaitingConnection
from gateway.pool.network.router_socket import RouterSocket
from gateway.pool.plausible import LONGEST_NAME
from protocol import WIRE_VERSION
from protocol.wire import codec
from protocol.wire.messages import Hello, Refused

logger = logging.getLogger(__name__)

_REST_S = 0.5
"""Seconds for which frames of a worker that died may still be on their way."""
_MAX_REFUSED = 1024
"""Refused connections remembered; beyond, all are forgotten."""


class Reception:
    """Refuses workers, or lets them wait until their name is free."""

    def __init__(self, socket: RouterSocket, access: PeerAccess, heartbeat_s: float) -> None:
        self._socket = socket
        self._access = access
        self._refused: set[bytes] = set()
        self._name_queue: NameQueue[zmq.Frame] = NameQueue(max(_REST_S, heartbeat_s))

    @property
    def has_waiting(self) -> bool:
        """Whether a worker waits for a name."""
        return bool(self._name_queue)

    def is_refused(self, identity: bytes) -> bool:
        """Whether a connection was refused: what it sends is dropped."""
        return identity in self._refused

    def refuses(self, identity: bytes, hello: Hello, curve: str) -> bool:
        """Refuse a worker whose `Hello` is not acceptable; true if it was refused."""
        if hello.wire_version != WIRE_VERSION or _is_no_text(identity):
            self._refuse_version(identity, hello)
            return True
        reason = _too_long(hello) or self._access.name_refusal(curve, hello.worker)
        if reason:
            self._refuse(identity, hello.worker[:LONGEST_NAME], reason)
        return bool(reason)

    def hold(self, identity: bytes, name: str, hello: zmq.Frame, now: float) -> None:
        """Let a second worker of a name wait until the first one sends something or is lost."""
        logger.info(
            "worker waits",
            extra={
                "worker": name,
                "cause": "another worker of this name is connected",
                "action": "it is admitted if that one disconnects, and refused if that one lives",
            },
        )
        one_too_many = self._name_queue.wait(identity, name, hello, now, len(hello))
        if one_too_many is not None:
            self._turn_away(one_too_many)

    def keep(self, identity: bytes, frame: zmq.Frame) -> bool:
        """Keep a frame of a worker that waits; false if it does not wait."""
        return self._name_queue.keep(identity, frame, len(frame))

    def settle(self, name: str, now: float) -> None:
        """Refuse those that wait for a name whose owner has just sent something."""
        for waiting in self._name_queue.refused(name, now):
            self._turn_away(waiting)

    def take_next(self, name: str) -> WaitingConnection[zmq.Frame] | None:
        """Take out the worker that has waited longest for a name that is free now."""
        return self._name_queue.take_next(name)

    def _turn_away(self, waiting: WaitingConnection[zmq.Frame]) -> None:
        """Refuse a worker, because another one of its name is alive."""
        reason = f"a worker named {waiting.name!r} is alive: give each worker a name of its own"
        self._refuse(waiting.identity, waiting.name, reason)

    def _refuse(self, identity: bytes, name: str, reason: str) -> None:
        """Refuse a worker; its process ends with this reason."""
        logger.error(
            "worker refused",
            extra={
                "worker": name,
                "cause": reason,
                "hint": "change its name, or the names that the file of its key allows",
            },
        )
        self._socket.send(identity, codec.encode(0, [Refused(reason=reason)]))
        self._ignore(identity)

    def _refuse_version(self, identity: bytes, hello: Hello) -> None:
        self._ignore(identity)
        logger.error(
            "worker refused",
            extra={
                "worker": hello.worker[:LONGEST_NAME],
                "cause": "it speaks another version of the wire protocol",
                "wire_version": hello.wire_version,
                "own_wire_version": WIRE_VERSION,
                "hint": "run the same release on both sides",
            },
        )

    def _ignore(self, identity: bytes) -> None:
        """Drop all later frames of a connection that was refused."""
        if len(self._refused) >= _MAX_REFUSED:
            self._refused.clear()
        self._refused.add(identity)


def _is_no_text(identity: bytes) -> bool:
    return identity.decode(errors="replace").encode() != identity


def _too_long(hello: Hello) -> str:
    is_long = max(len(hello.worker), len(hello.model)) > LONGEST_NAME
    return f"a name is longer than {LONGEST_NAME} characters" if is_long else ""
