"""Keeps slots free for tenants that have less than their share of them.

Pure bookkeeping. Without it a tenant that always has waiting tasks takes every slot as it becomes
free, and a tenant that sends one request at a time waits each time until another task ends. Kept
free are one slot for each tenant that had one a moment ago, at most as many as had one at the same
time, and up to a quarter of all slots for other tenants that are present. The cost: these slots
stay free while only tenants above their share wait.
"""

import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Container, Iterator
from itertools import islice

from gateway.pool.tasks.task import Task

_RECENT_S = 5.0
"""Seconds for which a tenant counts as present after its last task."""
_SLOTS_PER_RESERVE = 4
"""Of this many slots one may be kept free for other tenants that are present."""
_MIN_SLOTS = 4
"""Minimum slots of a model; with fewer none is kept free: it would be a large share."""


class _RecentPeak:
    """The largest value that a number had within the last `_RECENT_S` seconds."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, int]] = deque()
        """When a value ended, and the value: each smaller than the one before."""

    def ends(self, n: int, now: float) -> None:
        """Note that the number was `n` until now."""
        while self._ended and self._ended[-1][1] <= n:
            self._ended.pop()
        self._ended.append((now, n))

    def value(self, now: float) -> int:
        while self._ended and self._ended[0][0] + _RECENT_S <= now:
            self._ended.popleft()
        return self._ended[0][1] if self._ended else 0


class _ModelShares:
    """The tenants that have slots of one model."""

    def __init__(self) -> None:
        self.n_tasks: Counter[str] = Counter()
        self._n_at_once = _RecentPeak()
        """Tenants that had a slot."""
        self.seen_at: OrderedDict[str, float] = OrderedDict()
        """When each tenant's number of tasks changed last, the longest ago first."""
        self.steady: dict[str, None] = {}
        """Tenants that have a slot and were not seen lately."""

    def note(self, tenant: str, n: int, now: float) -> None:
        self._n_at_once.ends(len(self.n_tasks), now)
        self.n_tasks[tenant] += n
        if not self.n_tasks[tenant]:
            del self.n_tasks[tenant]
        self.steady.pop(tenant, None)
        self.seen_at[tenant] = now
        self.seen_at.move_to_end(tenant)
        self.count_present(now)

    def count_present(self, now: float) -> int:
        """Count the tenants that have a slot, or had one a moment ago."""
        while self.seen_at:
            tenant, at = next(iter(self.seen_at.items()))
            if at + _RECENT_S > now:
                break
            del self.seen_at[tenant]
            if tenant in self.n_tasks:
                self.steady[tenant] = None
        return len(self.seen_at) + len(self.steady)

    def count_absent(self, now: float) -> int:
        """Count how many fewer tenants have a slot now than at the recent peak."""
        return max(0, self._n_at_once.value(now) - len(self.n_tasks))

    def present_without_tasks(self, but: str, waiting: Container[str]) -> Iterator[str]:
        """Yield the present tenants without a waiting task, those seen last first."""
        present = itertools.chain(reversed(self.seen_at), self.steady)
        return (name for name in present if name != but and name not in waiting)


class SlotShares:
    """The tasks of each tenant that have a slot, by model."""

    def __init__(self) -> None:
        self._models: dict[str, _ModelShares] = {}
        self._counted: set[int] = set()
        self._now = 0.0
        self.held_back: set[str] = set()
        """Models of which a task was held back; the next tick tries them again."""

    def __repr__(self) -> str:
        counts = " ".join(
            f"{model}:{dict(shares.n_tasks)}" for model, shares in self._models.items()
        )
        return f"<SlotShares {counts}>"

    def assigned(self, task: Task, now: float) -> None:
        """Count a task that goes to a worker."""
        self._now = now
        if task.spec.takes_credit:
            self._counted.add(task.task_id)
            model = self._models.get(task.spec.model)
            if model is None:
                model = self._models[task.spec.model] = _ModelShares()
            model.note(task.spec.tenant, 1, now)

    def returned(self, task: Task) -> None:
        """Forget a task that has ended, or that goes back to the queue."""
        if task.task_id in self._counted:
            self._counted.remove(task.task_id)
            self._models[task.spec.model].note(task.spec.tenant, -1, self._now)

    def holds_back(
        self, task: Task, waiting: Container[str], n_slots: int, n_free: int, now: float
    ) -> bool:
        """Return whether a task must leave the free slots to others.

        `waiting` are the tenants that have tasks in the queue of its model.
        """
        self._now = now
        spec = task.spec
        model = self._models.get(spec.model)
        if model is None or not spec.takes_credit or n_slots < _MIN_SLOTS:
            return False
        n_own, n_max = model.n_tasks[spec.tenant], -(-n_slots // _SLOTS_PER_RESERVE)
        n_absent = model.count_absent(now)
        if not n_own or n_free > n_absent + n_max:
            return False
        if (n_own + 1) * model.count_present(now) <= n_slots:
            return False  # it stays within its share
        n_idle = sum(1 for _ in islice(model.present_without_tasks(spec.tenant, waiting), n_max))
        if not n_idle or n_free > n_absent + n_idle:
            return False
        self.held_back.add(spec.model)
        return True
