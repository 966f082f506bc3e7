"""Where sessions were last. Pure bookkeeping."""

from collections import OrderedDict
from typing import NamedTuple


class SessionPlacement(NamedTuple):
    """Where a session was last."""

    worker: str
    """Key of the connection."""
    n_tokens: int
    """What it left in the cache there."""


class SessionMap:
    """Where sessions were last; the one unused longest is forgotten first."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._placements: OrderedDict[int, SessionPlacement] = OrderedDict()

    def __repr__(self) -> str:
        return f"<SessionMap {len(self._placements)}>"

    def find(self, session: int) -> SessionPlacement | None:
        """Find where a session was last; 0 is no session."""
        return self._placements.get(session) if session else None

    def move(self, session: int, placement: SessionPlacement) -> None:
        """Note where a session is now."""
        if not session:
            return
        self._placements[session] = placement
        self._placements.move_to_end(session)
        if len(self._placements) > self._max_sessions:
            self._placements.popitem(last=False)

    def lost(self, worker: str) -> None:
        """Forget the sessions of a worker."""
        for session in [
            key for key, placement in self._placements.items() if placement.worker == worker
        ]:
            del self._placements[session]
