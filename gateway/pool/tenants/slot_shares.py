"""Keeps slots back from tenants that have more than their share, for those that have less.

Pure bookkeeping. Without it one tenant that always waits takes every slot in the moment in which it
becomes free, and whoever asks for one thing at a time waits each time until another task ends. Kept
are a slot for each tenant that had one a moment ago, as many as had one at the same time, and up to
a quarter of all for those that come besides. What that costs: these slots stay free, while nobody
of those has anything in the queue and only tenants above their share wait.
"""

import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Container, Iterator
from itertools import islice

from gateway.pool.task import Task

_RECENT_S = 5.0
"""How long a tenant counts after its last task, so that its next one finds a slot."""
_SLOTS_PER_RESERVE = 4
_FEWEST_SLOTS = 4
"""With fewer slots none is kept back: it would be a large part of the pool."""


class _RecentPeak:
    """The largest number that stood at any time of the last seconds."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, int]] = deque()
        """When a number ceased to stand, and the number: each smaller than the one before."""

    def ends(self, n: int, now: float) -> None:
        """Note that a number stood until now."""
        while self._ended and self._ended[-1][1] <= n:
            self._ended.pop()
        self._ended.append((now, n))

    def value(self, now: float) -> int:
        while self._ended and self._ended[0][0] + _RECENT_S <= now:
            self._ended.popleft()
        return self._ended[0][1] if self._ended else 0


class _ModelShares:
    """Who has the slots of one model."""

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
        """Count by how many fewer tenants have a slot than had one at once a moment ago."""
        return max(0, self._n_at_once.value(now) - len(self.n_tasks))

    def light(self, but: str, waiting: Container[str]) -> Iterator[str]:
        """Go through the present tenants of which no task waits, those seen last first."""
        present = itertools.chain(reversed(self.seen_at), self.steady)
        return (name for name in present if name != but and name not in waiting)


class SlotShares:
    """The tasks of each tenant that have a slot, by model."""

    def __init__(self) -> None:
        self._models: dict[str, _ModelShares] = {}
        self._counted: set[int] = set()
        self._now = 0.0
        self.held_back: set[str] = set()
        """Models of which a task was held back; they are looked at again with the clock."""

    def __repr__(self) -> str:
        told = " ".join(f"{model}:{dict(one.n_tasks)}" for model, one in self._models.items())
        return f"<SlotShares {told}>"

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
        """Tell whether a task must leave the free slots to others.

        `waiting` are the tenants that have tasks in the queue of its model.
        """
        self._now = now
        spec = task.spec
        model = self._models.get(spec.model)
        if model is None or not spec.takes_credit or n_slots < _FEWEST_SLOTS:
            return False
        n_own, n_most = model.n_tasks[spec.tenant], -(-n_slots // _SLOTS_PER_RESERVE)
        n_absent = model.count_absent(now)
        if not n_own or n_free > n_absent + n_most:
            return False
        if (n_own + 1) * model.count_present(now) <= n_slots:
            return False  # it stays within its share
        n_light = sum(1 for _ in islice(model.light(spec.tenant, waiting), n_most))
        if not n_light or n_free > n_absent + n_light:
            return False
        self.held_back.add(spec.model)
        return True
