"""The order in which waiting tasks are served: FIFO within a tenant, fair by tokens between them.

Pure bookkeeping over task ids; it knows no workers and no clock. Each tenant has a counter of the
tokens that it was served (virtual service); the waiting tenant with the least is next. One that
comes back after a pause starts at the level of those who waited, so idling saves up nothing.
"""

from bisect import insort
from collections.abc import Callable, Iterable

_MAX_COUNTERS = 4096
"""Tenants remembered while idle; beyond it those without a debt are forgotten."""

_MAX_DEFERRED = 16
"""Tasks of a tenant that may let a later one go first."""


class FairQueue:
    """Task ids by tenant; a smaller id was submitted earlier."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[int]] = {}
        self._served: dict[str, float] = {}
        self._floor = 0.0
        self._n_waiting = 0

    def __len__(self) -> int:
        return self._n_waiting

    def __repr__(self) -> str:
        waiting = " ".join(f"{name or '-'}:{len(ids)}" for name, ids in self._waiting.items())
        return f"<FairQueue {self._n_waiting} waiting {waiting}>".replace(" >", ">")

    def push(self, tenant: str, task_id: int) -> None:
        """Add a task at its place in the tenant's order; one that comes back is first again."""
        ids = self._waiting.get(tenant)
        if ids is None:
            self._lift(tenant)
            self._waiting[tenant] = [task_id]
        else:
            insort(ids, task_id)
        self._n_waiting += 1

    def pop(
        self, eligible: Callable[[int], bool], defers: Callable[[int], bool] = lambda _: False
    ) -> int | None:
        """Take the first eligible task of the tenant that was served least.

        One that defers lets the next few of its own tenant go before it, but goes if none does.
        """
        for tenant in sorted(self._waiting, key=self._level):
            task_id = _first(self._waiting[tenant], eligible, defers)
            if task_id is not None:
                self._floor = max(self._floor, self._level(tenant))
                self.remove(tenant, task_id)
                return task_id
        return None

    def remove(self, tenant: str, task_id: int) -> None:
        """Take out a task that waits."""
        ids = self._waiting[tenant]
        ids.remove(task_id)
        self._n_waiting -= 1
        if not ids:
            del self._waiting[tenant]

    def charge(self, tenant: str, tokens: float) -> None:
        """Count tokens that a tenant was served; negative gives some back."""
        self._served[tenant] = self._level(tenant) + tokens

    def _level(self, tenant: str) -> float:
        return self._served.get(tenant, 0.0)

    def _lift(self, tenant: str) -> None:
        floor = min(map(self._level, self._waiting), default=self._floor)
        if len(self._served) >= _MAX_COUNTERS:
            self._served = {
                name: level
                for name, level in self._served.items()
                if level > floor or name in self._waiting
            }
        self._served[tenant] = max(self._level(tenant), floor)


def _first(
    ids: Iterable[int], eligible: Callable[[int], bool], defers: Callable[[int], bool]
) -> int | None:
    deferred: list[int] = []
    for task_id in ids:
        if defers(task_id):
            deferred.append(task_id)
            if len(deferred) == _MAX_DEFERRED:
                break
        elif eligible(task_id):
            return task_id
    return next(filter(eligible, deferred), None)
