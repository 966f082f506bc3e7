"""Blocks peers for a while that send invalid frames, or too many uninvited ones. Pure."""

from collections import OrderedDict, deque

_LIMIT = 10
_MOST_KNOCKS = 2000
"""Uninvited frames; a worker that was lost may send some hundred before it notices."""
_WINDOW_S = 60.0
BLOCKED_S = 60.0
_MAX_PEERS = 1024
"""Peers remembered; the one whose last offence is oldest is forgotten first."""

_Times = OrderedDict[str, deque[float]]


class Offences:
    """Times of unreadable and of uninvited frames, by the key or name of who sent them."""

    def __init__(self) -> None:
        self._times: _Times = OrderedDict()
        self._knocks: _Times = OrderedDict()
        self._blocked_until: OrderedDict[str, float] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Offences {len(self._times)} noted {len(self._blocked_until)} blocked>"

    def note(self, who: str, now: float) -> bool:
        """Count an invalid frame; true if its peer is now blocked."""
        return self._count(self._times, who, now, _LIMIT)

    def knock(self, who: str, now: float) -> bool:
        """Count a frame of a connection that was not accepted; true if its peer is now blocked."""
        return self._count(self._knocks, who, now, _MOST_KNOCKS)

    def block(self, who: str, now: float) -> None:
        """Block a peer from now on."""
        self._blocked_until[who] = now + BLOCKED_S
        self._blocked_until.move_to_end(who)
        if len(self._blocked_until) > _MAX_PEERS:
            self._blocked_until.popitem(last=False)

    def is_blocked(self, who: str, now: float) -> bool:
        """Whether a peer may not connect now."""
        until = self._blocked_until.get(who)
        if until is not None and until <= now:
            del self._blocked_until[who]
            until = None
        return until is not None

    def _count(self, found: _Times, who: str, now: float, limit: int) -> bool:
        times = found.pop(who, None)
        times = times if times is not None else deque()
        while times and times[0] <= now - _WINDOW_S:
            times.popleft()
        times.append(now)
        if len(times) >= limit:
            self.block(who, now)
            return True
        found[who] = times
        if len(found) > _MAX_PEERS:
            found.popitem(last=False)
        return False
