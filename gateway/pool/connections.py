"""Connections of workers: handshake, order of frames, liveness, one frame a turn of the loop.

It turns bytes into messages and lost connections into one call, and knows nothing of tasks. Every
connection has a fresh identity (`name:epoch:m.n`); frames of an identity that was given up are
counted and answered with a gap in the sequence, upon which a living worker connects anew.
"""

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.pool.rivals import Rival, Rivals
from gateway.pool.router_socket import RouterSocket
from protocol import WIRE_VERSION
from protocol.errors import TaskError
from protocol.wire import codec
from protocol.wire.frames import pack
from protocol.wire.messages import Bye, FrameItem, Heartbeat, Hello, Ping, Refused, Welcome

logger = logging.getLogger(__name__)

_SILENT_BEATS = 5
_SILENT_MIN_S = 3.0
_STALL_FACTOR, _STALL_MORE_S = 1.5, 5.0
"""A worker whose engine is stuck ends itself after `stall_s`; the gateway waits longer."""
_SECOND_LOOK_S = 0.05
_REST_S = 0.5
"""How long frames of a worker that died may still be on their way."""
_MAX_REFUSED = 1024
_RESET = codec.encode(-1, [Ping()])
"""A frame out of sequence, upon which a living worker connects anew."""


@dataclass(slots=True, kw_only=True)
class WorkerConnection:
    """One live connection."""

    key: str
    identity: bytes
    name: str
    epoch: int
    model: str
    number: int = 0
    """The worker's own number of it."""
    seen_at: float
    moved_at: float
    """When its engine last made a step, or had nothing to do."""
    step: int = -1
    stall_s: float = math.inf
    """How long its engine may be busy without a step before the connection is given up."""
    expected: int = 1
    sent: int = 0
    outbox: list[FrameItem] = field(default_factory=list)

    def beat(self, beat: Heartbeat, now: float) -> None:
        """Take in whether the engine makes steps."""
        if not beat.busy or beat.step != self.step:
            self.step, self.moved_at = beat.step, now
        self.stall_s = _STALL_FACTOR * beat.stall_s + _STALL_MORE_S if beat.busy else math.inf


class Owner(Protocol):
    """Receiver of messages and lost connections."""

    def joined(self, peer: WorkerConnection) -> None:
        """Take in a worker that said `Hello`."""

    def received(self, peer: WorkerConnection, items: Sequence[FrameItem], now: float) -> None:
        """Take the messages of one frame."""

    def lost(self, peer: WorkerConnection, reason: str, *, died: bool) -> None:
        """Act on a lost connection."""

    def refused(self, peer: WorkerConnection, item: FrameItem, error: TaskError) -> None:
        """End the task of a message that could not be sent."""

    def dropped(self, n: int) -> None:
        """Count messages that belong to no task."""

    def failed(self, place: str) -> None:
        """Log and count the exception that is being handled."""


class WorkerConnections:
    """All connections of workers over one ROUTER."""

    def __init__(self, owner: Owner, gateway: str, *, heartbeat_s: float) -> None:
        """`gateway` is the id of this process."""
        self._owner = owner
        self._gateway = gateway
        self._heartbeat_s = heartbeat_s
        self._socket = RouterSocket(self._on_frame, self._on_disconnect)
        self._peers: dict[bytes, WorkerConnection] = {}
        self._refused: set[bytes] = set()
        self._rivals = Rivals(max(_REST_S, heartbeat_s))
        self._dirty: dict[bytes, WorkerConnection] = {}
        self._flush: asyncio.Handle | None = None
        self._look: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<WorkerConnections {' '.join(peer.key for peer in self._peers.values())}>"

    def open(self, endpoints: Sequence[str]) -> None:
        """Bind; raises `ConfigError`."""
        self._socket.open(endpoints)

    def bind(self) -> None:
        """Let workers dial the endpoints again; raises `ConfigError`."""
        self._socket.bind()

    def post_all(self, message: FrameItem) -> None:
        """Send a message to every worker with this turn of the loop."""
        for peer in self._peers.values():
            self.post(peer.key, message)

    def close(self) -> None:
        """Drop every connection without telling the workers."""
        for handle in (self._flush, self._look):
            if handle is not None:
                handle.cancel()
        self._peers.clear()
        self._socket.close()

    def get(self, key: str) -> WorkerConnection:
        """Return the connection with this key."""
        return self._peers[key.encode()]

    def post(self, key: str, item: FrameItem) -> None:
        """Send a message with all others of this turn of the loop. Never waits or fails."""
        peer = self._peers.get(key.encode())
        if peer is None:
            return
        peer.outbox.append(item)
        self._dirty[peer.identity] = peer
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send what was posted; a peer that cannot be reached is lost."""
        self._flush = None
        while self._dirty:
            _, peer = self._dirty.popitem()
            items, peer.outbox = peer.outbox, []
            if self._peers.get(peer.identity) is peer:
                self._reach(peer, items)

    def sweep(self, now: float) -> None:
        """Lose the connections that were silent for too long."""
        # What came while this process was held up counts as a sign of life.
        self._socket.drain_all()
        limit_s = max(_SILENT_MIN_S, _SILENT_BEATS * self._heartbeat_s)
        for peer in list(self._peers.values()):
            reason = ""
            if now - peer.seen_at > limit_s:
                reason = f"was silent for {limit_s:g} s"
            elif now - peer.moved_at > peer.stall_s:
                reason = f"is stuck: busy in step {peer.step} for {now - peer.moved_at:.1f} s"
            try:
                if reason:
                    self._break(peer, reason)
            except Exception:
                self._owner.failed("sweep")

    def _reach(self, peer: WorkerConnection, items: Sequence[FrameItem]) -> None:
        """Send messages; a peer that cannot be reached is lost, the others are not affected."""
        try:
            if not self._send(peer, items):
                self._lose_unreachable(peer)
        except Exception:
            self._owner.failed("send")
            self._break(peer, "could not be sent to", died=False)

    def _send(self, peer: WorkerConnection, items: Sequence[FrameItem]) -> bool:
        packed = pack(peer.sent, items)
        for data in packed.frames:
            peer.sent += 1
            if not self._socket.send(peer.identity, data):
                return False
        for item, error in packed.refused:
            self._owner.refused(peer, item, error)
        return True

    def _on_frame(self, identity: bytes, data: bytes) -> None:
        try:
            self._take(identity, data)
        except Exception:
            self._owner.failed("frame")

    def _take(self, identity: bytes, data: bytes) -> None:
        now = asyncio.get_running_loop().time()
        peer = self._peers.get(identity)
        if peer is None and self._rivals.keep(identity, data):
            return
        try:
            frame = codec.decode(data)
        except codec.ProtocolError as error:
            self._owner.dropped(1)
            logger.warning(
                "frame unreadable",
                extra={
                    "worker": peer.name if peer is not None else None,
                    "identity": identity[:64].decode(errors="replace"),
                    "cause": error,
                    "action": "the connection is given up" if peer is not None else None,
                },
            )
            if peer is not None:
                self._break(peer, "sent what is no frame")
            return
        if peer is None:
            self._greet(identity, frame, data)
            return
        if frame.seq != peer.expected:
            reason = f"skipped from frame {peer.expected} to {frame.seq}"
            self._break(peer, reason, died=False)
            return
        peer.expected += 1
        peer.seen_at = now
        for rival in self._rivals.refused(peer.name, now) if self._rivals else ():
            self._turn_away(rival)
        self._owner.received(peer, frame.messages, now)
        if frame.messages and isinstance(bye := frame.messages[-1], Bye):
            self._lose(peer, f"said bye: {bye.reason}", died=bye.is_failure)

    def _greet(self, identity: bytes, frame: codec.Frame, data: bytes) -> None:
        hello = frame.messages[0] if frame.seq == 0 and frame.messages else None
        if not isinstance(hello, Hello):
            self._owner.dropped(len(frame.messages))
            if identity not in self._refused:
                self._socket.send(identity, _RESET)
            return
        key = identity.decode(errors="replace")
        if hello.wire_version != WIRE_VERSION or key.encode() != identity:
            self._refuse(identity, hello)
            return
        old = next((peer for peer in self._peers.values() if peer.name == hello.worker), None)
        if old is not None and old.epoch != hello.epoch:
            self._doubt(old, identity, data)
            return
        if old is not None and old.number != hello.connection:
            # A second way to this process: the worker sees whom it has reached, and gives it up.
            self._socket.send(identity, codec.encode(0, [self._welcome()]))
            return
        if old is not None:
            self._lose(old, "connected anew", died=False)
        self._admit(key, identity, hello, frame.messages[1:])

    def _admit(self, key: str, identity: bytes, hello: Hello, more: Sequence[FrameItem]) -> None:
        now = asyncio.get_running_loop().time()
        peer = WorkerConnection(
            key=key,
            identity=identity,
            name=hello.worker,
            epoch=hello.epoch,
            model=hello.model,
            number=hello.connection,
            seen_at=now,
            moved_at=now,
        )
        self._peers[identity] = peer
        self._owner.joined(peer)
        self.post(key, self._welcome())
        if more:
            self._owner.received(peer, more, now)

    def _welcome(self) -> Welcome:
        return Welcome(gateway=self._gateway, heartbeat_s=self._heartbeat_s)

    def _doubt(self, old: WorkerConnection, identity: bytes, hello: bytes) -> None:
        """Let a second worker of a name wait until the first one sends something or is lost."""
        logger.info(
            "worker waits",
            extra={"worker": old.name, "cause": "another worker of this name is connected"},
        )
        now = asyncio.get_running_loop().time()
        one_too_many = self._rivals.wait(identity, old.name, hello, now)
        if one_too_many is not None:
            self._turn_away(one_too_many)
        self._reach(old, [Ping()])

    def _turn_away(self, rival: Rival) -> None:
        """Refuse a worker, because another one of its name is alive."""
        reason = f"a worker named {rival.name!r} is alive: give each worker a name of its own"
        logger.error("worker refused", extra={"worker": rival.name, "cause": reason})
        self._socket.send(rival.identity, codec.encode(0, [Refused(reason=reason)]))
        self._ignore(rival.identity)

    def _succeed(self, name: str) -> None:
        """Take in a worker that waited for a name which is free now."""
        heir = self._rivals.heir(name)
        if heir is not None:
            for data in heir.frames:
                self._on_frame(heir.identity, data)

    def _refuse(self, identity: bytes, hello: Hello) -> None:
        self._ignore(identity)
        logger.error(
            "worker refused",
            extra={
                "worker": hello.worker,
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

    def _lose(self, peer: WorkerConnection, reason: str, *, died: bool = True) -> None:
        if self._peers.pop(peer.identity, None) is not None:
            self._owner.lost(peer, reason, died=died)
            if self._rivals:
                asyncio.get_running_loop().call_soon(self._succeed, peer.name)

    def _break(self, peer: WorkerConnection, reason: str, *, died: bool = True) -> None:
        """Give up a connection whose worker may be alive; tell it, so that it connects anew."""
        self._lose(peer, reason, died=died)
        self._socket.send(peer.identity, _RESET)

    def _lose_unreachable(self, peer: WorkerConnection) -> None:
        # What it sent before it went still counts: the end of a task, or its `Bye`.
        self._socket.drain_all()
        self._lose(peer, "is gone")

    def _on_disconnect(self) -> None:
        """Find the peer that has gone: ZeroMQ does not say which one, but a send to it fails."""
        self._ping_all()
        if self._look is None:
            # The event may overtake the end of the route; a second look settles it.
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(_SECOND_LOOK_S, self._ping_all, True)

    def _ping_all(self, is_second: bool = False) -> None:
        if is_second:
            self._look = None
        for peer in list(self._peers.values()):
            self._reach(peer, [Ping()])
