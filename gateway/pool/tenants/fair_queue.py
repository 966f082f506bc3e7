"""The order in which waiting tasks are served: FIFO within a tenant, fair by tokens between them.

Pure bookkeeping over task ids, without workers or a clock. Each tenant has a counter of the tokens
that it was served (virtual service, as in the Virtual Token Counter of Sheng et al., OSDI 2024);
the waiting tenant with the least is next. A tenant that comes back after a pause starts at the
level of those who waited, so idling saves up nothing.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

MAX_IDLE = 4096
"""Tenants remembered while none of their tasks waits; the one unused longest is forgotten first."""

_MAX_DEFERRED = 16
"""Tasks of a tenant that may let a later one go first."""


@dataclass(slots=True)
class _Line:
    """The waiting tasks of one tenant, and the tokens it was served."""

    level: float
    ids: list[int] = field(default_factory=list)


class FairQueue:
    """Task ids by tenant; a smaller id was submitted earlier."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Line] = {}
        self._idle: OrderedDict[str, float] = OrderedDict()
        """Levels of tenants without a waiting task, the one used longest ago first."""
        self._floor = 0.0
        """Highest level at which a task was served."""
        self._n_waiting = 0

    def __len__(self) -> int:
        return self._n_waiting

    def __repr__(self) -> str:
        waiting = " ".join(f"{name or '-'}:{len(one.ids)}" for name, one in self._waiting.items())
        return f"<FairQueue {self._n_waiting} waiting {waiting}>".replace(" >", ">")

    @property
    def n_idle(self) -> int:
        """Count the tenants that are remembered without a waiting task."""
        return len(self._idle)

    def shares(self) -> Mapping[str, int]:
        """Count the waiting tasks of each tenant that has any."""
        return {tenant: len(line.ids) for tenant, line in self._waiting.items()}

    def newest(self, tenant: str) -> int:
        """Return the task that a waiting tenant submitted last."""
        return self._waiting[tenant].ids[-1]

    def push(self, tenant: str, task_id: int) -> None:
        """Add a task at its place in the tenant's order; one that comes back is first again."""
        line = self._waiting.get(tenant)
        if line is None:
            floor = min((one.level for one in self._waiting.values()), default=self._floor)
            line = self._waiting[tenant] = _Line(max(self._idle.pop(tenant, 0.0), floor))
        insort(line.ids, task_id)
        self._n_waiting += 1

    def candidates(self, defers: Callable[[int], bool]) -> Iterator[int]:
        """Yield tasks in the order of service, the least served tenant's first.

        A task that defers comes after those of its own tenant that do not. The queue must not
        change between two of them.
        """
        for _, line in sorted(self._waiting.items(), key=lambda item: item[1].level):
            deferred: list[int] = []
            for task_id in line.ids:
                if not defers(task_id):
                    yield task_id
                    continue
                deferred.append(task_id)
                if len(deferred) == _MAX_DEFERRED:
                    break
            yield from deferred

    def serve(self, tenant: str, task_id: int) -> None:
        """Take out a task that goes to a worker."""
        self._floor = max(self._floor, self._waiting[tenant].level)
        self.remove(tenant, task_id)

    def remove(self, tenant: str, task_id: int) -> None:
        """Take out a task that waits no longer."""
        line = self._waiting[tenant]
        line.ids.remove(task_id)
        self._n_waiting -= 1
        if not line.ids:
            del self._waiting[tenant]
            self._rest(tenant, line.level)

    def charge(self, tenant: str, tokens: float) -> None:
        """Count tokens that a tenant was served; a negative number gives some back."""
        line = self._waiting.get(tenant)
        if line is not None:
            line.level += tokens
        else:
            self._rest(tenant, self._idle.get(tenant, 0.0) + tokens)

    def _rest(self, tenant: str, level: float) -> None:
        """Remember an idle tenant, and forget another for it if there are too many."""
        self._idle[tenant] = level
        self._idle.move_to_end(tenant)
        if len(self._idle) > MAX_IDLE:
            self._idle.popitem(last=False)
