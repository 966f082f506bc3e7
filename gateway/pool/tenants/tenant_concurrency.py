"""How many tasks of a tenant run or compete for slots, where its key bounds their number. Pure."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from gateway.pool.tasks.task import Task


class ConcurrencyElsewhere(NamedTuple):
    """What the other gateways of the host have of one tenant."""

    n_tasks: int
    """Tasks that run or compete there."""
    n_gateways: int
    """Gateways that have any task of it, waiting ones included."""


class TenantConcurrency:
    """Counts the tasks of tenants whose limit is not 0."""

    def __init__(self) -> None:
        self._of_tasks: set[int] = set()
        self._n_tasks: Counter[str] = Counter()
        self._newest: dict[str, int] = {}
        """The limit of each tenant's latest task: it counts for those that are held, too."""
        self.elsewhere: Mapping[str, ConcurrencyElsewhere] = {}

    def __repr__(self) -> str:
        return f"<TenantConcurrency {dict(self._n_tasks)}>"

    @property
    def n_tasks(self) -> Mapping[str, int]:
        """The tasks of each tenant that has any."""
        return self._n_tasks

    def note_limit(self, task: Task) -> bool:
        """Note the limit that a tenant has now; return whether it has changed."""
        limit, tenant = task.spec.limits.concurrent, task.spec.tenant
        if not limit or not self._n_tasks.get(tenant):
            return False
        before = self._newest.get(tenant)
        self._newest[tenant] = limit
        return before not in (None, limit)

    def take(self, task: Task) -> bool:
        """Count a task, if its tenant may have one more; one that comes back is counted already."""
        if self.turns(task, 0) > 0:
            return False
        if task.spec.limits.concurrent and task.task_id not in self._of_tasks:
            self._of_tasks.add(task.task_id)
            self._n_tasks[task.spec.tenant] += 1
            self._newest.setdefault(task.spec.tenant, task.spec.limits.concurrent)
        return True

    def turns(self, task: Task, n_held: int) -> float:
        """Return how often each of a tenant's running tasks must end until this one may compete.

        `n_held` tasks of the tenant are held before it. 0 if it may compete now.
        """
        limit, tenant = task.spec.limits.concurrent, task.spec.tenant
        if not limit or task.task_id in self._of_tasks:
            return 0.0
        allowed = self._allowed(tenant, self._newest.get(tenant, limit))
        return max(0, self._n_tasks.get(tenant, 0) + n_held + 1 - allowed) / allowed

    def give_back(self, task: Task) -> bool:
        """Forget a task that has ended; false if it was not counted."""
        if task.task_id not in self._of_tasks:
            return False
        tenant = task.spec.tenant
        self._of_tasks.remove(task.task_id)
        self._n_tasks[tenant] -= 1
        if not self._n_tasks[tenant]:
            del self._n_tasks[tenant]
            self._newest.pop(tenant, None)
        return True

    def _allowed(self, tenant: str, limit: int) -> int:
        """Return what a limit leaves to this gateway: never less than its share."""
        others = self.elsewhere.get(tenant)
        if others is None:
            return limit
        return max(limit - others.n_tasks, limit // (1 + others.n_gateways), 1)
