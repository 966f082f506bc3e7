"""The order in which waiting tasks are served: by class, fair by tokens between tenants.

Pure bookkeeping over task ids, without workers or a clock. Each tenant has a counter of the tokens
that it was served (virtual service, as in the Virtual Token Counter of Sheng et al., OSDI 2024); of
the waiting tenants of the highest class the one with the least is next. A tenant that comes back
after a pause starts at the level of those who waited, so idling saves up nothing. That level is
without what is only assumed of tasks not started: it may be given back. Within a tenant the
order is that of the requests' own priorities, then that of arrival.
"""

import itertools
import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, KeysView, Mapping
from dataclasses import dataclass, field

from gateway.pool.ordered_keys import OrderedKeys, Place

MAX_IDLE = 4096
"""Tenants remembered while none of their tasks waits; the one unused longest is forgotten first."""

_MAX_DEFERRED = 16
"""Tasks of a tenant that may let a later one go first."""

_Entry = tuple[int, int]
"""Priority of a task, the lower the sooner, and its id."""


@dataclass(slots=True)
class _Line:
    """The waiting tasks of one tenant, and the tokens it was served."""

    level: float
    rank: int
    """Number of its class, the lower the sooner."""
    number: int = 0
    """Counts the lines: of equals the one that waits longest is served."""
    entries: list[_Entry] = field(default_factory=list)
    held: list[_Entry] = field(default_factory=list)
    """Tasks that must wait until the tenant has fewer others."""

    def __len__(self) -> int:
        return len(self.entries) + len(self.held)


class FairQueue:
    """Task ids by tenant; a smaller id was submitted earlier."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Line] = {}
        self._order = OrderedKeys()
        """The tenants with a task that competes, the next one first."""
        self._numbers = itertools.count()
        self._idle: OrderedDict[str, float] = OrderedDict()
        """Levels of tenants without a waiting task, the one used longest ago first."""
        self._assumed: dict[str, float] = {}
        """Tokens of the tenants' levels that may be given back."""
        self._floor = 0.0
        """Highest level at which a task was served, without what was assumed."""
        self._n_waiting = 0

    def __len__(self) -> int:
        return self._n_waiting

    def __repr__(self) -> str:
        waiting = " ".join(f"{name or '-'}:{len(line)}" for name, line in self._waiting.items())
        return f"<FairQueue {self._n_waiting} waiting {waiting}>".replace(" >", ">")

    @property
    def tenants(self) -> KeysView[str]:
        """The tenants that wait."""
        return self._waiting.keys()

    def shares(self) -> Mapping[str, int]:
        """Count the waiting tasks of each tenant that has any."""
        return {tenant: len(line) for tenant, line in self._waiting.items()}

    def longest(self, rank: int) -> str | None:
        """Return the tenant with most waiting tasks, of the lowest class that is at most `rank`."""
        lines = {name: line for name, line in self._waiting.items() if line.rank >= rank}
        return max(lines, key=lambda name: (lines[name].rank, len(lines[name])), default=None)

    def rank(self, tenant: str) -> int:
        """Return the class of a waiting tenant."""
        return self._waiting[tenant].rank

    def place(self, tenant: str) -> Place:
        """Return the place of a tenant of which a task competes; the least is next."""
        return self._order[tenant]

    def newest(self, tenant: str) -> int:
        """Return the task of a waiting tenant that would be served last."""
        line = self._waiting[tenant]
        return (line.held or line.entries)[-1][1]

    def push(
        self, tenant: str, task_id: int, *, priority: int = 0, rank: int = 1, is_held: bool = False
    ) -> None:
        """Add a task at its place in the tenant's order; one that comes back is first again."""
        line = self._waiting.get(tenant)
        if line is None:
            level = self._entry_level(tenant)
            line = self._waiting[tenant] = _Line(level, rank, next(self._numbers))
            self._idle.pop(tenant, None)
        line.rank = rank
        insort(line.held if is_held else line.entries, (priority, task_id))
        self._arrange(tenant, line)
        self._n_waiting += 1

    def _arrange(self, tenant: str, line: _Line) -> None:
        if line.entries:
            self._order.put(tenant, (line.rank, line.level, line.number))
        else:  # where only held tasks wait, the level stands still: nobody is to start there
            self._order.drop(tenant)

    def _entry_level(self, tenant: str) -> float:
        """Return the level at which a tenant begins to wait."""
        floor = math.inf
        first = next(iter(self._order), None)
        while first is not None:  # the first one of each class
            floor = min(floor, self._certain(str(first[-1]), float(first[1])))
            first = next(self._order.after((float(first[0]) + 1,)), None)
        return max(self._idle.get(tenant, 0.0), self._floor if math.isinf(floor) else floor)

    def first_held(self, tenant: str) -> _Entry | None:
        """Return the held task of a tenant that would be next."""
        line = self._waiting.get(tenant)
        return line.held[0] if line is not None and line.held else None

    def n_held(self, tenant: str, entry: _Entry) -> int:
        """Count the held tasks of a tenant that come before an entry."""
        line = self._waiting.get(tenant)
        return bisect_left(line.held, entry) if line is not None else 0

    def admit(self, tenant: str) -> None:
        """Let the first held task of a tenant compete."""
        line = self._waiting[tenant]
        insort(line.entries, line.held.pop(0))
        self._arrange(tenant, line)

    def candidates(
        self,
        defers: Callable[[int], bool],
        is_held_back: Callable[[int], bool] = lambda _: False,
    ) -> Iterator[int]:
        """Yield tasks in the order of service.

        A task that defers comes after those of its own tenant that do not. Of one that is held back
        the tenant must leave the slots to others: none of its tasks follows. The queue must not
        change between two of them.
        """
        for place in self._order:
            deferred: list[int] = []
            for _, task_id in self._waiting[str(place[-1])].entries:
                if is_held_back(task_id):
                    break
                if not defers(task_id):
                    yield task_id
                    continue
                deferred.append(task_id)
                if len(deferred) == _MAX_DEFERRED:
                    break
            yield from deferred

    def position(self, tenant: str, entry: _Entry, rank: int, cost: float) -> int:
        """Estimate how many tasks are served until it is this one's turn; 1 is next.

        Every waiting task is taken to cost as many tokens as this one, which may be yet to come.
        """
        own = self._waiting.get(tenant) or _Line(self._entry_level(tenant), rank)
        n_own = bisect_left(own.entries, entry) + bisect_left(own.held, entry)
        turn = own.level + n_own * cost
        n_before = n_own
        for name, line in self._waiting.items():
            if name != tenant and line.rank < own.rank:
                n_before += len(line.entries)
            elif name != tenant and line.rank == own.rank:
                n_sooner = math.ceil((turn - line.level) / max(cost, 1.0))
                n_before += min(len(line.entries), max(0, n_sooner))
        return n_before + 1

    def serve(self, tenant: str, task_id: int, priority: int = 0) -> None:
        """Take out a task that goes to a worker."""
        self._floor = max(self._floor, self._certain(tenant, self._waiting[tenant].level))
        self.remove(tenant, task_id, priority)

    def remove(self, tenant: str, task_id: int, priority: int = 0) -> None:
        """Take out a task that waits no longer."""
        line, entry = self._waiting[tenant], (priority, task_id)
        at = bisect_left(line.entries, entry)
        if line.entries[at : at + 1] == [entry]:
            del line.entries[at]
        else:
            line.held.remove(entry)
        self._n_waiting -= 1
        self._arrange(tenant, line)
        if not len(line):
            del self._waiting[tenant]
            self._remember_idle(tenant, line.level)

    def charge(self, tenant: str, tokens: float) -> None:
        """Count tokens that a tenant was served; a negative number gives some back."""
        line = self._waiting.get(tenant)
        if line is not None:
            line.level += tokens
            self._arrange(tenant, line)
        else:
            self._remember_idle(tenant, self._idle.get(tenant, 0.0) + tokens)

    def assume(self, tenant: str, tokens: float) -> None:
        """Add to the charged tokens that are only assumed; a negative number confirms them."""
        left = self._assumed.pop(tenant, 0.0) + tokens
        if left > 0:
            self._assumed[tenant] = left

    def _certain(self, tenant: str, level: float) -> float:
        return level - self._assumed.get(tenant, 0.0)

    def _remember_idle(self, tenant: str, level: float) -> None:
        """Remember an idle tenant, and forget another for it if there are too many."""
        self._idle[tenant] = level
        self._idle.move_to_end(tenant)
        if len(self._idle) > MAX_IDLE:
            self._idle.popitem(last=False)
