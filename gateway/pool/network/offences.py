"""Peers that write nonsense again and again: blocked for a while. Pure."""

from collections import OrderedDict

_LIMIT = 10
_WINDOW_S = 60.0
BLOCKED_S = 60.0
_MAX_PEERS = 1024
"""Peers remembered; the one whose last offence is oldest is forgotten first."""


class Offences:
    """Times of unreadable frames, by the key or name of who sent them."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, list[float]] = OrderedDict()
        self._blocked_until: OrderedDict[str, float] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Offences {len(self._times)} noted {len(self._blocked_until)} blocked>"

    def note(self, who: str, now: float) -> bool:
        """Count one more offence; tell whether it is the one that blocks."""
        times = [one for one in self._times.pop(who, []) if one > now - _WINDOW_S]
        times.append(now)
        if len(times) >= _LIMIT:
            self._blocked_until[who] = now + BLOCKED_S
            if len(self._blocked_until) > _MAX_PEERS:
                self._blocked_until.popitem(last=False)
            return True
        self._times[who] = times
        if len(self._times) > _MAX_PEERS:
            self._times.popitem(last=False)
        return False

    def is_blocked(self, who: str, now: float) -> bool:
        """Whether a peer may not connect now."""
        until = self._blocked_until.get(who)
        if until is not None and until <= now:
            del self._blocked_until[who]
            until = None
        return until is not None
