"""Connections of workers: handshake, order of frames, liveness, one frame a turn of the loop.

It turns bytes into messages and lost connections into one call, and knows nothing of tasks. Every
connection has a fresh identity (`name:epoch:m.n`); frames of an identity that was given up are
counted and answered with a gap in the sequence, upon which a living worker connects anew.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence

import zmq

from gateway.pool.network.access import PeerAccess
from gateway.pool.network.observer import ConnectionObserver, Loss
from gateway.pool.network.peer_socket import PeerSocket, key_of, pid_of, socket_of
from gateway.pool.network.reception import Reception
from gateway.pool.network.router_socket import RouterSocket
from gateway.pool.network.worker_connection import WorkerConnection
from protocol.config.config import GatewayConfig
from protocol.process.shared_memory import open_shared
from protocol.wire import codec
from protocol.wire.accounts import N_BYTES, AccountReader
from protocol.wire.field_readers import MAX_REASON, ProtocolError
from protocol.wire.messages import Bye, Drain, FrameItem, Hello, Ping, Welcome
from protocol.wire.sharing import Stay, Successor

logger = logging.getLogger(__name__)

_SILENT_HEARTBEATS = 5
_SILENT_MIN_S = 3.0
"""A worker is lost after this many heartbeats without a frame, and at least this many seconds."""
_LATE_S = 1.0
"""Maximum seconds between two sweeps; for any longer time this process has stood still."""
_UNASKED_BYTES = 8 * 1024 * 1024
"""Largest frame of a worker without a task here: its card, its settings, its cached blocks."""
_LARGE_BYTES = 16 * 1024
"""Frames of this size may be slow to read: they may have a thousand messages."""
_SLOW_S = 0.2
"""Time of a frame that counts against its sender; those of an honest worker rarely take as long."""
_RESET = codec.encode(-1, [Ping()])
"""A frame out of sequence: a living worker reconnects when it gets one."""


class WorkerConnections:
    """All connections of workers over one ROUTER."""

    def __init__(
        self,
        observer: ConnectionObserver,
        config: GatewayConfig,
        gateway: str,
        count_failure: Callable[[str], None],
    ) -> None:
        """`gateway` is the id of this process; `count_failure` counts handshakes by kind."""
        self._observer = observer
        access = PeerAccess(config.curve_key_file, config.worker_keys, count_failure)
        self._access = access
        self._gateway = gateway
        self._heartbeat_s = config.heartbeat_s
        self._socket = RouterSocket(self._on_frame, self._ping, access, config.heartbeat_s)
        self._peers: dict[bytes, WorkerConnection] = {}
        self._is_aside = False
        self._swept_at = math.inf
        self._reception = Reception(self._socket, access, config.heartbeat_s)
        self._dirty: dict[bytes, WorkerConnection] = {}
        self._drained: dict[str, int] = {}
        """Epochs of the workers that were told to leave, by name."""
        self._flush: asyncio.Handle | None = None

    def open(self, endpoints: Sequence[str], *, joins: bool = False) -> None:
        """Bind, with `joins` beside another gateway of the pool; raises `ConfigError`."""
        self._socket.open(endpoints, joins=joins)

    def release_endpoints(self) -> None:
        """Let the workers dial another process; one that dials this one is cut, and tries again."""
        self._is_aside = True
        self._post_all(Successor())

    def take_endpoints_back(self) -> None:
        """Let workers dial this process again; raises `ConfigError`."""
        self._is_aside = False
        self._post_all(Stay())
        self._socket.take_back()

    def _post_all(self, message: FrameItem) -> None:
        """Send a message to every worker with this turn of the loop."""
        for peer in self._peers.values():
            self.post(peer.key, message)

    def close(self) -> None:
        """Drop every connection without telling the workers."""
        if self._flush is not None:
            self._flush.cancel()
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

    def drain(self, name: str) -> None:
        """Tell a worker to leave, and again if it comes back: the order may never have arrived."""
        for peer in self._peers.values():
            if peer.name == name:
                self._drained[name] = peer.epoch
                self.post(peer.key, Drain())

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
        if self._access.refresh(now):
            self._drop_revoked()
        limit_s = max(_SILENT_MIN_S, _SILENT_HEARTBEATS * self._heartbeat_s)
        held_s, self._swept_at = now - self._swept_at - _LATE_S, now
        for peer in list(self._peers.values()):
            try:
                if held_s > 0:
                    peer.ignore_pause(held_s)
                if reason := peer.loss_reason(now, limit_s):
                    self._break(peer, reason)
                elif reason := peer.flood_reason(now):
                    self._access.block(_who(peer.identity, peer.curve_key), reason, now)
                    self._break(peer, reason)
                    self._cut(peer.socket)
            except Exception:
                self._observer.failed("sweep")

    def _reach(self, peer: WorkerConnection, items: Sequence[FrameItem]) -> None:
        """Send messages; a peer that cannot be reached is lost, the others are not affected."""
        try:
            if not self._send(peer, items):
                self._lose_unreachable(peer)
        except Exception:
            self._observer.failed("send")
            self._break(peer, "a message to it could not be sent", Loss.LEFT)

    def _send(self, peer: WorkerConnection, items: Sequence[FrameItem]) -> bool:
        packed = codec.pack(peer.sent, items)
        for data in packed.frames:
            peer.sent += 1
            if not self._socket.send(peer.identity, data):
                return False
        for item, error in packed.refused:
            self._observer.refused(peer, item, error)
        return True

    def _on_frame(self, identity: bytes, frame: zmq.Frame) -> None:
        start_s = time.thread_time()
        try:
            self._take(identity, frame)
        except Exception:
            self._observer.failed("frame")
        if len(frame) > _LARGE_BYTES and (held_s := time.thread_time() - start_s) > _SLOW_S:
            self._count_slow(identity, frame, held_s)

    def _count_slow(self, identity: bytes, part: zmq.Frame, held_s: float) -> None:
        """Count the time for which a frame has held the loop; block a peer that takes too much."""
        who = _who(identity, key_of(part) if self._socket.has_tcp else "")
        if self._access.sent_slow(who, held_s, self._now()):
            if (peer := self._peers.get(identity)) is not None:
                self._break(peer, "its frames take too long to read")
            self._cut(self._socket_of(part))

    def _take(self, identity: bytes, part: zmq.Frame) -> None:
        now = self._now()
        peer = self._peers.get(identity)
        key = key_of(part) if self._socket.has_tcp else ""
        if peer is not None and peer.curve_key != key:
            self._observer.dropped(1)  # it has taken over the identity of a connection that ended
            return
        if peer is None and not self._may_speak(identity, part, key, now):
            return
        try:
            if len(part) > _UNASKED_BYTES and (peer is None or not self._observer.expects(peer)):
                raise ProtocolError(f"{len(part)} bytes from a worker without a task")
            frame = codec.decode(part.bytes)
            if peer is None:
                self._handle_hello(identity, frame, part, key)
                return
            if frame.seq != peer.expected:
                reason = f"sent frame {frame.seq} where {peer.expected} was expected"
                self._break(peer, reason, Loss.LEFT)
                return
            peer.expected += 1
            peer.seen_at = now
            if peer.is_contested:
                self._reception.settle(peer.name, now)
                peer.is_contested = self._reception.has_waiting
            self._observer.received(peer, frame.messages, now)
        except ProtocolError as error:
            self._give_up(self._peers.get(identity), identity, part, key, error)
            return
        if frame.messages and isinstance(bye := frame.messages[-1], Bye):
            reason = f"said bye: {bye.reason[:MAX_REASON]}"
            self._lost(peer, reason, Loss.DIED if bye.is_failure else Loss.LEFT)

    def _may_speak(self, identity: bytes, part: zmq.Frame, key: str, now: float) -> bool:
        """Whether to read a frame of a connection that was not taken in, or has been given up."""
        self._socket.mark_accepted(part)
        if not self._access.admits(key, now):
            self._observer.dropped(1)
            return False
        if self._access.sent_unaccepted(_who(identity, key), now):
            self._observer.dropped(1)
            self._cut(self._socket_of(part))
            return False
        return not self._reception.keep(identity, part)

    def _give_up(
        self,
        peer: WorkerConnection | None,
        identity: bytes,
        part: zmq.Frame,
        key: str,
        error: ProtocolError,
    ) -> None:
        """Drop an unreadable frame and its connection; block a peer that sends many."""
        self._observer.dropped(1)
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
            self._break(peer, "sent an unreadable frame")
        if self._access.sent_unreadable(_who(identity, key), self._now()):
            self._cut(self._socket_of(part))

    def _handle_hello(
        self, identity: bytes, frame: codec.Frame, part: zmq.Frame, curve: str
    ) -> None:
        hello = frame.messages[0] if frame.seq == 0 and frame.messages else None
        if not isinstance(hello, Hello):
            self._observer.dropped(len(frame.messages))
            if not self._reception.is_refused(identity):
                self._socket.send(identity, _RESET)
            return
        if self._is_aside or self._access.is_blocked(curve or hello.worker, self._now()):
            self._cut(self._socket_of(part))
            return
        if self._reception.refuses(identity, hello, curve):
            return
        old = next((peer for peer in self._peers.values() if peer.name == hello.worker), None)
        if old is not None and (old.epoch, old.curve_key) != (hello.epoch, curve):
            self._reception.hold(identity, old.name, part, self._now())
            old.is_contested = True
            self._reach(old, [Ping()])
            return
        if old is not None and old.number != hello.connection:
            # A second connection to this process: the worker recognizes the gateway and closes it.
            self._socket.send(identity, codec.encode(0, [self._welcome()]))
            return
        if old is not None:
            self._lost(old, "has connected again", Loss.LEFT)
        self._admit(identity, hello, part, curve)
        if len(frame.messages) > 1:
            peer = self._peers[identity]
            self._observer.received(peer, frame.messages[1:], peer.seen_at)

    def _admit(self, identity: bytes, hello: Hello, part: zmq.Frame, curve: str) -> None:
        now = self._now()
        peer = WorkerConnection(
            key=identity.decode(),
            identity=identity,
            name=hello.worker,
            epoch=hello.epoch,
            model=hello.model,
            number=hello.connection,
            curve_key=curve,
            socket=self._socket_of(part),
            seen_at=now,
            moved_at=now,
            is_contested=self._reception.has_waiting,
            counted_at=now,
            accounts=_accounts_of(hello, pid_of(part)),
        )
        self._peers[identity] = peer
        self._observer.joined(peer)
        self.post(peer.key, self._welcome())
        if self._drained.pop(peer.name, None) == peer.epoch:
            self.drain(peer.name)

    def _welcome(self) -> Welcome:
        return Welcome(gateway=self._gateway, heartbeat_s=self._heartbeat_s)

    def _lost(self, peer: WorkerConnection, reason: str, loss: Loss = Loss.DIED) -> None:
        if self._peers.pop(peer.identity, None) is not None:
            self._observer.lost(peer, reason, loss)
            if self._reception.has_waiting:
                asyncio.get_running_loop().call_soon(self._succeed, peer.name)

    def _succeed(self, name: str) -> None:
        """Take in a worker that waited for a name which is free now."""
        waiting = self._reception.take_next(name)
        if waiting is not None:
            for frame in waiting.frames:
                self._on_frame(waiting.identity, frame)

    def _break(self, peer: WorkerConnection, reason: str, loss: Loss = Loss.DIED) -> None:
        """Give up a connection whose worker may be alive; tell it, so that it reconnects."""
        self._lost(peer, reason, loss)
        self._socket.send(peer.identity, _RESET)

    def _lose_unreachable(self, peer: WorkerConnection) -> None:
        # What it sent before it went still counts: the end of a task, or its `Bye`.
        self._socket.drain_all()
        self._lost(peer, "its connection has ended", Loss.BROKEN)

    def _socket_of(self, part: zmq.Frame) -> PeerSocket | None:
        return socket_of(part, self._socket.ports)

    def _cut(self, socket: PeerSocket | None) -> None:
        if socket is not None:
            socket.cut()

    def _drop_revoked(self) -> None:
        """Cut the connections whose key was revoked, or is not for this name any more."""
        now = self._now()
        for peer in list(self._peers.values()):
            admits = self._access.admits(peer.curve_key, now)
            if not admits or self._access.name_refusal(peer.curve_key, peer.name):
                self._lost(peer, "its key was revoked")
                self._cut(peer.socket)

    def _ping(self, ended: set[int]) -> None:
        """Try the peers behind these descriptors: a send to one that has gone fails.

        The descriptors may belong to other peers by now.
        """
        for peer in list(self._peers.values()):
            if peer.socket is None or peer.socket.fd in ended:
                self._reach(peer, [Ping()])

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _who(identity: bytes, key: str) -> str:
    """Return what to block for a bad frame: the worker's key, or its own name without a key."""
    return key or identity.decode(errors="replace").partition(":")[0]


def _accounts_of(hello: Hello, pid: int) -> AccountReader | None:
    """Return where a worker of this host counts; None for any other."""
    memory = open_shared(pid, hello.accounts, N_BYTES) if pid and hello.accounts >= 0 else None
    accounts = AccountReader(memory) if memory is not None else None
    return accounts if accounts is not None and accounts.is_of(hello.epoch) else None
