"""What the gateway knows of one connection of a worker, live or broken."""

import math
from dataclasses import dataclass, field

from gateway.pool.network.peer_socket import PeerSocket
from protocol.wire.accounts import AccountReader
from protocol.wire.cached import BLOCK_BYTES, MAX_CACHED_BLOCKS, Cached
from protocol.wire.facts import Stats
from protocol.wire.field_readers import ProtocolError
from protocol.wire.messages import FrameItem, Heartbeat

_STALL_FACTOR, _STALL_MORE_S = 1.5, 5.0
"""A worker whose engine is stuck ends itself after `stall_s`; the gateway waits longer."""
_FLOOD_PER_S, _FLOOD_S = 20_000, 2.0
"""Frames that no worker sends, which sends one for each step of its engine."""
_MAX_CACHED_BYTES = 4 * BLOCK_BYTES * MAX_CACHED_BLOCKS
"""Of cached blocks in one frame, which takes 0.7 s: a worker says all it holds to each gateway."""
_MAX_BROKEN = 1024
"""Broken connections remembered; the one that was lost longest ago is forgotten first."""


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
    curve_key: str
    """Public key of the worker; empty for a Unix socket."""
    socket: PeerSocket | None
    seen_at: float
    moved_at: float
    """When its engine last made a step, or had nothing to do."""
    is_contested: bool = False
    """Whether another worker may wait for its name."""
    step: int = -1
    stall_s: float = math.inf
    """How long its engine may be busy without a step before the connection is given up."""
    expected: int = 1
    counted: int = 1
    """What `expected` was when `flood_reason` last looked, at `counted_at`."""
    counted_at: float = 0.0
    sent: int = 0
    outbox: list[FrameItem] = field(default_factory=list)
    accounts: AccountReader | None = None
    """What its attempts have cost, in its own memory; None if it is on another host."""
    stats: Stats = field(default_factory=Stats)
    """Its counters, by the latest heartbeat."""
    n_cached_bytes: int = 0
    """Bytes of cached blocks in the frame that is read, whose number is `cached_frame`."""
    cached_frame: int = -1
    is_ready: bool = False
    """It has sent its card."""
    is_miscounting: bool = False
    """It has sent counters that cannot be, which was logged."""

    def note_heartbeat(self, heartbeat: Heartbeat, now: float) -> None:
        """Take in its counters, and whether the engine makes steps."""
        self.stats = heartbeat.stats
        if not heartbeat.busy or heartbeat.step != self.step:
            self.step, self.moved_at = heartbeat.step, now
        self.stall_s = (
            _STALL_FACTOR * heartbeat.stall_s + _STALL_MORE_S if heartbeat.busy else math.inf
        )

    def count_cached(self, cached: Cached) -> None:
        """Count the bytes of a report on its cache; raises `ProtocolError` for too many."""
        if self.cached_frame != self.expected:
            self.n_cached_bytes, self.cached_frame = 0, self.expected
        self.n_cached_bytes += sum(map(len, (*cached.added, *cached.removed)))
        if self.n_cached_bytes > _MAX_CACHED_BYTES:
            raise ProtocolError(f"more than {_MAX_CACHED_BYTES} bytes of cached blocks in a frame")

    def ignore_pause(self, held_s: float) -> None:
        """Count no silence while this process stood still: what came then is read a moment later.

        A machine may stop a process, or itself, for as long as a worker may be silent.
        """
        self.seen_at += held_s
        self.moved_at += held_s

    def loss_reason(self, now: float, limit_s: float) -> str:
        """Return why the worker is taken for lost, if it was silent for longer or is stuck."""
        if now - self.seen_at > limit_s:
            return f"was silent for {limit_s:g} s"
        if now - self.moved_at > self.stall_s:
            return f"is stuck: busy in step {self.step} for {now - self.moved_at:.1f} s"
        return ""

    def flood_reason(self, now: float) -> str:
        """Return what is wrong if it sends far more frames than an engine can make steps."""
        passed_s, n = now - self.counted_at, self.expected - self.counted
        if passed_s < _FLOOD_S:
            return ""
        self.counted_at, self.counted = now, self.expected
        return f"sent {n} frames in {passed_s:.0f} s" if n > _FLOOD_PER_S * passed_s else ""


class BrokenConnections:
    """The latest connection of each worker that ended without a `Bye`.

    It tells a worker that has died from one whose connection broke: that one connects again.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[int, str, str]] = {}
        """Epoch, CURVE key and key of the connection."""

    def ended(self, peer: WorkerConnection) -> None:
        """Note that the connection of a worker has ended."""
        self._by_name.pop(peer.name, None)
        self._by_name[peer.name] = (peer.epoch, peer.curve_key, peer.key)
        if len(self._by_name) > _MAX_BROKEN:
            del self._by_name[next(iter(self._by_name))]

    def back(self, peer: WorkerConnection) -> str:
        """Return the key of the connection that this process had before; empty if it had none."""
        epoch, curve_key, key = self._by_name.pop(peer.name, (0, "", ""))
        return key if (epoch, curve_key) == (peer.epoch, peer.curve_key) else ""
