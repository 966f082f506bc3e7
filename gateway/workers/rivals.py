"""Workers that come under a name which a connected worker has: they wait until it is clear whether
that one lives.

Pure. The name of a worker that was killed is free again, and its successor may come before that is
noticed; but a worker that lives is never thrown out. So the newcomer waits: if the first one says
anything, the newcomer is refused; if the first one is lost, the newcomer has its name.
"""

from dataclasses import dataclass, field

_MAX_RIVALS = 64
_MAX_FRAMES = 1024
"""What one may say while it waits: it loads its model meanwhile."""


@dataclass(slots=True)
class Rival:
    """A connection that waits for its name."""

    identity: bytes
    name: str
    since: float
    frames: list[bytes] = field(default_factory=list)
    """All that it said, to be heard once it has the name."""


class Rivals:
    """All that wait."""

    def __init__(self, rest_s: float) -> None:
        self._rest_s = rest_s
        """What comes of the first one sooner may have been on its way when it died."""
        self._waiting: dict[bytes, Rival] = {}

    def __repr__(self) -> str:
        return f"<Rivals {' '.join(rival.name for rival in self._waiting.values())}>"

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self, identity: bytes, name: str, hello: bytes, now: float) -> Rival | None:
        """Let a newcomer wait; return one that has to give up its place for it."""
        self._waiting[identity] = Rival(identity, name, now, [hello])
        if len(self._waiting) <= _MAX_RIVALS:
            return None
        return self._waiting.pop(next(iter(self._waiting)))

    def hear(self, identity: bytes, frame: bytes) -> bool:
        """Keep what a waiting one says; false if it does not wait."""
        rival = self._waiting.get(identity)
        if rival is not None and len(rival.frames) < _MAX_FRAMES:
            rival.frames.append(frame)
        return rival is not None

    def refused(self, name: str, now: float) -> list[Rival]:
        """Take out those whose name is taken for good: its owner has just spoken."""
        over = [
            rival
            for rival in self._waiting.values()
            if rival.name == name and now - rival.since >= self._rest_s
        ]
        for rival in over:
            del self._waiting[rival.identity]
        return over

    def heir(self, name: str) -> Rival | None:
        """Take out who has waited longest for a name that is free now."""
        found = next((rival for rival in self._waiting.values() if rival.name == name), None)
        return self._waiting.pop(found.identity) if found is not None else None
