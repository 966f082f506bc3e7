"""What has happened in the pool lately: workers that came, went or failed. A bounded list.

Plain bookkeeping: nothing here reacts to an event.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

MAX_EVENTS = 100
"""Events that are kept, and that the page shows."""
_MAX_WHY = 200
"""Characters of a reason, which comes from a worker or from its operating system."""


class EventKind(StrEnum):
    """What can happen."""

    READY = "ready"
    """A worker takes tasks: it is new, or it came back."""
    LOST = "lost"
    """The connection of a worker broke: it died, hung, or cannot be reached."""
    LEFT = "left"
    """A worker said that it leaves."""
    DRAINING = "draining"
    """A worker takes nothing new."""
    EJECTED = "ejected"
    """A worker gets one task at a time, because it fails or is slow."""
    LET_IN = "let in"
    """An ejected worker does well again."""
    ASLEEP = "asleep"
    """A worker has unloaded its model, because it had nothing to do."""
    AWAKE = "awake"
    REFUSED = "refused"
    """A request is refused from now on, because workers died with it."""
    DIED = "died"
    """A process ended; its supervisor says why."""
    QUARANTINED = "quarantined"
    """A process died too often; its supervisor waits before it starts it again."""
    GIVEN_UP = "given up"
    """A process is not started again."""
    DRAINED = "drained"
    """A process ended because an admin drained it."""
    ROLLOUT = "rollout"
    """A rolling change began, progressed or ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEvent:
    """One event."""

    number: int
    """Counts the events of this gateway."""
    time: float
    """Unix time in seconds."""
    kind: EventKind
    name: str = ""
    """Of the worker or the process."""
    model: str = ""
    why: str = ""
    n_tasks: int = 0
    """Tasks that it had."""


class PoolEvents:
    """The latest events, oldest first."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._events: deque[PoolEvent] = deque(maxlen=MAX_EVENTS)
        self._n = 0

    def note(
        self, kind: EventKind, *, name: str = "", model: str = "", why: str = "", n_tasks: int = 0
    ) -> None:
        """Add an event; the oldest one goes if there are too many."""
        self._n += 1
        event = PoolEvent(
            number=self._n,
            time=self._clock(),
            kind=kind,
            name=name,
            model=model,
            why=why[:_MAX_WHY],
            n_tasks=n_tasks,
        )
        self._events.append(event)

    def latest(self) -> tuple[PoolEvent, ...]:
        """Return the events, oldest first."""
        return tuple(self._events)
