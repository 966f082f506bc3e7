"""Blocks peers that send frames that are unreadable, slow to read or unaccepted. Pure."""

from collections import OrderedDict, deque

MAX_UNREADABLE = 10
"""Unreadable frames within the window."""
MAX_UNACCEPTED = 2000
"""Frames within the window on connections that were not accepted, or were given up; a worker that
was given up may send some hundred before it notices."""
MAX_SLOW_S = 5.0
"""Time that frames which hold the loop may take at once."""
_SLOW_SHARE = 0.25
"""Share of the loop that they may have for long."""
WINDOW_S = 60.0
"""Seconds within which frames are counted."""
BLOCKED_S = 60.0
"""Seconds for which a peer is blocked."""
_MAX_PEERS = 1024
"""Peers remembered; the one whose last bad frame is oldest is forgotten first."""

_Times = OrderedDict[str, deque[float]]


class BadFrames:
    """Times of unreadable frames and of unaccepted ones, by the key or name of who sent them."""

    def __init__(self) -> None:
        self._unreadable: _Times = OrderedDict()
        self._unaccepted: _Times = OrderedDict()
        self._slow: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Seconds that their slow frames have taken, and when the last one came."""
        self._blocked_until: OrderedDict[str, float] = OrderedDict()

    def count_unreadable(self, who: str, now: float) -> bool:
        """Count an unreadable frame; true if its peer is now blocked."""
        return self._count(self._unreadable, who, now, MAX_UNREADABLE)

    def count_unaccepted(self, who: str, now: float) -> bool:
        """Count a frame of a connection that was not accepted; true if its peer is now blocked."""
        return self._count(self._unaccepted, who, now, MAX_UNACCEPTED)

    def count_slow(self, who: str, seconds: float, now: float) -> bool:
        """Count a frame that has held the loop; true if its peer is now blocked."""
        spent_s, at = self._slow.pop(who, (0.0, now))
        spent_s = max(0.0, spent_s - _SLOW_SHARE * (now - at)) + seconds
        if spent_s > MAX_SLOW_S:
            self.block(who, now)
            return True
        self._slow[who] = spent_s, now
        if len(self._slow) > _MAX_PEERS:
            self._slow.popitem(last=False)
        return False

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
        while times and times[0] <= now - WINDOW_S:
            times.popleft()
        times.append(now)
        if len(times) >= limit:
            self.block(who, now)
            return True
        found[who] = times
        if len(found) > _MAX_PEERS:
            found.popitem(last=False)
        return False
