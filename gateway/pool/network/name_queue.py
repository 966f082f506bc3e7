"""Workers that connect under the name of a connected worker wait until it is clear which one lives.

Pure. The name of a killed worker is free again, and its successor may connect before the death is
noticed; but a living worker is never disconnected for another. So the newcomer waits: if the first
one sends anything, the newcomer is refused; if the first one is lost, the newcomer gets the name.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

F = TypeVar("F")
"""What the owner calls a frame; it is kept, not looked into."""

_MAX_WAITING = 64
"""Waiting connections of all names; beyond it, the longest waiting one is refused."""
_MAX_FRAMES = 1024
"""Frames kept of a waiting worker, which loads its model meanwhile."""
_MAX_BYTES = 16 * 1024 * 1024
"""Frames of all waiting workers; the next one is dropped, and its worker reconnects."""


@dataclass(slots=True)
class WaitingConnection(Generic[F]):
    """A connection that waits for its name."""

    identity: bytes
    name: str
    since: float
    frames: list[F] = field(default_factory=list)
    """What it has sent, to be taken in once it has the name."""
    n_bytes: int = 0


class NameQueue(Generic[F]):
    """All connections that wait for a name."""

    def __init__(self, rest_s: float) -> None:
        self._rest_s = rest_s
        """A frame of the first worker that comes sooner may have been sent before it died."""
        self._waiting: dict[bytes, WaitingConnection[F]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def _n_bytes(self) -> int:
        return sum(waiting.n_bytes for waiting in self._waiting.values())

    def wait(
        self, identity: bytes, name: str, hello: F, now: float, size: int = 0
    ) -> WaitingConnection[F] | None:
        """Let a connection wait; return the connection that must be refused for it, if any.

        `size` is that of its first frame, in bytes.
        """
        self._waiting[identity] = WaitingConnection(identity, name, now, [hello], size)
        if self._n_bytes > _MAX_BYTES:
            largest = max(self._waiting.values(), key=lambda waiting: waiting.n_bytes)
            return self._waiting.pop(largest.identity)
        if len(self._waiting) <= _MAX_WAITING:
            return None
        return self._waiting.pop(next(iter(self._waiting)))

    def keep(self, identity: bytes, frame: F, size: int = 0) -> bool:
        """Keep a frame of `size` bytes of a waiting connection; false if it does not wait."""
        waiting = self._waiting.get(identity)
        if waiting is None:
            return False
        if len(waiting.frames) < _MAX_FRAMES and self._n_bytes + size <= _MAX_BYTES:
            waiting.frames.append(frame)
            waiting.n_bytes += size
        return True

    def refused(self, name: str, now: float) -> list[WaitingConnection[F]]:
        """Take out those whose name stays taken: its owner has just sent a frame."""
        over = [
            waiting
            for waiting in self._waiting.values()
            if waiting.name == name and now - waiting.since >= self._rest_s
        ]
        for waiting in over:
            del self._waiting[waiting.identity]
        return over

    def take_next(self, name: str) -> WaitingConnection[F] | None:
        """Take out the connection that has waited longest for a name that is free now."""
        found = next((waiting for waiting in self._waiting.values() if waiting.name == name), None)
        return self._waiting.pop(found.identity) if found is not None else None
