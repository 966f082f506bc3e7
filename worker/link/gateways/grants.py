"""Which gateway may send how many tasks to this worker. Pure and synchronous.

A worker has `n_slots + n_prefetch` credits. Each is held by one gateway, with a task of it or
without one, or is free here. A gateway alone holds all of them. Where there are several:

- the credit of a task that ends comes back, and goes to the gateway whose oldest task has waited
  longest;
- a gateway that waits while others hold unused credits gets those: they are recalled;
- a gateway that has waited for long gets an even share first, whatever the others report, and none
  collects credits;
- if nobody waits, the slots are spread evenly, and what exceeds them stays here until it is wanted,
  so that no gateway sends ahead while it could have a slot elsewhere.

`settle` applies these rules after each change. What a gateway may have is
`credits + granted - returned` at both ends: `granted` is counted here, `returned` by the gateway.
"""

import math
from dataclasses import dataclass, field

from protocol.wire.messages import TaskKey

_USE_S = 0.1
"""A gateway uses a credit that it waits for within this time, if it can use it at all."""
_HELD_BACK_S = 1.0
"""A gateway that has not used a credit for this time gets no more while others wait."""
_STARVED_S = 5.0
"""Wait for a credit after which a gateway with less than an even share comes first.

What a gateway says about the age of its tasks decides nothing then.
"""
_UNCREDITED = 16
"""Golden prompts of a rolling change that a gateway may have here at once, beyond its credits."""
_MAX_LIGHT = 4096
"""Tasks that need no credit which a gateway may have here at once: they are kept in memory."""


@dataclass(slots=True)
class CreditShare:
    """The credits of one gateway."""

    granted: int
    """Net number of credits given to it since it came, beyond all of the worker's."""
    limit: int = 0
    """Tasks that it may have here at once."""
    held: set[TaskKey] = field(default_factory=set)
    """Tasks of it that are here and have a credit."""
    light: set[TaskKey] = field(default_factory=set)
    """Tasks of it that are here and need no credit."""
    n_waiting: int = 0
    since: float = math.inf
    """When the oldest of its waiting tasks came."""
    n_recalled: int = 0
    """Credits that it was asked to return and has not answered about."""
    recalled_at: float = 0.0
    given_at: float = -math.inf
    """When it got a credit last."""
    short_at: float = math.inf
    """Since when it has waited with less than an even share."""
    has_yielded: bool = False
    """It has just returned credits, so the next free one goes to another gateway."""
    is_retired: bool = False
    """Its gateway has a successor: it gets what it waits for, and keeps nothing."""

    @property
    def n_idle(self) -> int:
        """Credits that it does not use, as far as is known here."""
        return max(0, self.limit - len(self.held))

    @property
    def n_lacking(self) -> int:
        """Credits that it waits for."""
        return max(0, self.n_waiting - self.n_idle)


class Grants:
    """The credits of one worker, by the number of each gateway's connection."""

    def __init__(self) -> None:
        self._n_slots = self._n_credits = 0
        self._shares: dict[int, CreditShare] = {}

    def __repr__(self) -> str:
        held = " ".join(f"{n}:{len(s.held)}/{s.limit}" for n, s in self._shares.items())
        return f"<Grants {self.n_free} of {self._n_credits} free {held}>"

    def size(self, n_slots: int, n_prefetch: int) -> None:
        """Set how many there are, once the model is loaded."""
        self._n_slots, self._n_credits = n_slots, n_slots + n_prefetch

    @property
    def n_free(self) -> int:
        """Credits that no gateway has."""
        return self._n_credits - sum(share.limit for share in self._shares.values())

    @property
    def is_shared(self) -> bool:
        """Whether more than one gateway uses the worker."""
        return len(self._shares) > 1

    def granted(self, number: int) -> int:
        """Return the credits given to a gateway less those taken from it (`Heartbeat.granted`)."""
        return self._shares[number].granted

    def limit(self, number: int) -> int:
        """Return how many tasks a gateway may have here at once."""
        return self._shares[number].limit

    def others(self, number: int) -> int:
        """Count the tasks of all other gateways that have a credit."""
        return sum(len(share.held) for other, share in self._shares.items() if other != number)

    # ---- what happens -------------------------------------------------------------------------

    def open(self, number: int) -> None:
        """Let a gateway take part; `settle` gives it its first credits."""
        self._shares[number] = CreditShare(granted=-self._n_credits)

    def close(self, number: int) -> None:
        """Take back all that a lost gateway had; the engine ends its tasks before any others."""
        self._shares.pop(number, None)

    def retire(self, number: int, *, is_retired: bool = True) -> None:
        """Let a gateway keep nothing that it does not need, because another one takes over."""
        if number in self._shares:
            self._shares[number].is_retired = is_retired

    def has(self, key: TaskKey) -> bool:
        """Return whether this very attempt is here."""
        share = self._shares.get(key.connection)
        return share is not None and key in share.held

    def take(self, key: TaskKey) -> bool:
        """Count a task against its gateway's credits; false if the gateway has too many.

        A few more are accepted: golden prompts need no credit. Before the slots are open there are
        none.
        """
        share = self._shares.get(key.connection)
        if share is None or len(share.held) >= share.limit + _UNCREDITED:
            return False
        share.held.add(key)
        return True

    def take_light(self, key: TaskKey) -> bool:
        """Count a task that needs no credit; false if the gateway has too many of them here."""
        share = self._shares.get(key.connection)
        if share is None or len(share.light) >= _MAX_LIGHT:
            return False
        share.light.add(key)
        return True

    def end(self, key: TaskKey, *, leaves_credit: bool = False) -> bool:
        """Take the credit of a task back, unless its gateway may keep it; false if it had none."""
        share = self._shares.get(key.connection)
        if share is None or key not in share.held:
            if share is not None:
                share.light.discard(key)
            return False
        is_covered = len(share.held) <= share.limit
        share.held.remove(key)
        if self.is_shared and is_covered and not leaves_credit:
            self._give(share, -1)
        return True

    def want(self, number: int, n_waiting: int, since: float) -> None:
        """Note how many tasks wait in a gateway, and since when the oldest of them does."""
        if (share := self._shares.get(number)) is not None:
            share.n_waiting = max(0, n_waiting)
            share.since = since if n_waiting > 0 else math.inf

    def give_back(self, number: int, n: int) -> None:
        """Take credits that a gateway returns; it may have used more than is known here."""
        share = self._shares.get(number)
        if share is None or not share.n_recalled:
            return
        n = min(max(0, n), share.n_recalled, share.limit)
        share.limit -= n
        share.n_recalled = 0
        share.has_yielded = n > 0

    # ---- what follows -------------------------------------------------------------------------

    def settle(self, now: float) -> list[tuple[int, int]]:
        """Hand out what is free; return what is to be recalled, as numbers and counts."""
        if not self.is_shared:
            for share in self._shares.values():
                self._give(share, self.n_free)
            return []
        level = max(1, self._level())
        for share in self._shares.values():
            is_short = share.n_lacking > 0 and share.limit < level
            share.short_at = min(share.short_at, now) if is_short else math.inf
        while self.n_free > 0 and (chosen := self._next(now, level)) is not None:
            self._give(chosen, 1)
            chosen.given_at = now
            for other in self._shares.values():
                other.has_yielded = False
        return self._recalls(now)

    def overdue(self, now: float, limit_s: float) -> list[int]:
        """List the gateways that have not answered a recall for `limit_s`."""
        return [
            number
            for number, share in self._shares.items()
            if share.n_recalled and now - share.recalled_at > limit_s
        ]

    def _give(self, share: CreditShare, n: int) -> None:
        share.granted += n
        share.limit += n

    def _next(self, now: float, level: int) -> CreditShare | None:
        """Choose the gateway that gets a free credit; None leaves it here."""
        lacking = [share for share in self._shares.values() if share.n_lacking]
        if lacking:
            return min(lacking, key=lambda share: _rank(share, now, level))
        staying = [share for share in self._shares.values() if not share.is_retired]
        if not staying or self._n_credits - self.n_free >= self._n_slots:
            return None
        return min(staying, key=lambda share: share.limit)

    def _recalls(self, now: float) -> list[tuple[int, int]]:
        """Choose whose unused credits are wanted by others, or have to go around evenly."""
        n_coming = sum(share.n_recalled for share in self._shares.values())
        wanted = self._n_wanted() - n_coming
        found: list[tuple[int, int]] = []
        if wanted <= 0:
            return found
        surplus = {number: self._surplus(share, now) for number, share in self._shares.items()}
        # Retired gateways first: one that stays would get its credit back and be asked again.
        leaving = {number for number, share in self._shares.items() if share.is_retired}
        for number in sorted(surplus, key=lambda one: (one in leaving, surplus[one]), reverse=True):
            share, n = self._shares[number], min(wanted, surplus[number])
            if n > 0:
                share.n_recalled, share.recalled_at = n, now
                found.append((number, n))
                wanted -= n
        return found

    def _n_wanted(self) -> int:
        """Count the credits that are unused with one gateway and should be elsewhere."""
        lacking = sum(share.n_lacking for share in self._shares.values())
        if lacking or any(share.n_waiting for share in self._shares.values()):
            return lacking
        level, n_given = self._level(), self._n_credits - self.n_free
        leaving = sum(share.n_idle for share in self._shares.values() if share.is_retired)
        uneven = sum(
            max(0, level - share.limit) for share in self._shares.values() if not share.is_retired
        )
        return max(leaving, uneven + max(0, n_given - self._n_slots))

    def _surplus(self, share: CreditShare, now: float) -> int:
        """Count the unused credits of a gateway that others may have."""
        if share.n_lacking or share.n_recalled:
            return 0
        if share.n_waiting and now - share.given_at < _USE_S:
            return 0  # it is about to use them; after `_USE_S` it evidently cannot
        if share.is_retired or any(other.n_lacking for other in self._shares.values()):
            return share.n_idle
        return min(share.n_idle, max(0, share.limit - self._level()))

    def _level(self) -> int:
        """Return how many credits each gateway has while none waits for more."""
        n = sum(not share.is_retired for share in self._shares.values())
        return self._n_slots // max(1, n)


def _rank(share: CreditShare, now: float, level: int) -> tuple[bool, bool, bool, float]:
    """Order the gateways that wait for a credit; the least is first."""
    holds_back = share.n_idle > 0 and now - share.given_at > _HELD_BACK_S
    is_starved = share.limit < level and now - share.short_at > _STARVED_S
    return holds_back, not is_starved, share.has_yielded, share.since
