"""The waiting room of the pool: a fair queue for each model, and a deadline for every task.

Pure bookkeeping over submissions; who can take one is asked of the caller.
"""

from collections.abc import Callable
from typing import TypeVar

from gateway.pool.actions import TaskSpec
from gateway.pool.tenants.fair_queue import FairQueue

Place = TypeVar("Place")


class TaskQueue:
    """Tasks that wait, by model."""

    def __init__(self, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._queues: dict[str, FairQueue] = {}
        self._waiting: dict[int, tuple[TaskSpec, float]] = {}
        """In order of their deadlines, as all wait equally long."""
        self._n_special = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"<TaskQueue {' '.join(f'{model}:{n}' for model, n in self.depths().items())}>"

    def __contains__(self, model: str) -> bool:
        return model in self._queues

    def depths(self) -> dict[str, int]:
        """Count the waiting tasks of every known model."""
        return {model: len(queue) for model, queue in self._queues.items()}

    def depth(self, model: str) -> int:
        """Count the waiting tasks of one model."""
        return len(self._queues[model])

    def displaced_by(self, spec: TaskSpec) -> TaskSpec | None:
        """Find the task that gives its place in a full queue to this one; None if none has to.

        It is the newest of the tenant with most waiting tasks, if that tenant has at least two
        more than the one that asks (longest queue drop): who waits alone may fill the queue, and
        who comes late still gets an equal share of it.
        """
        shares = self._queues[spec.model].shares()
        longest = max(shares, key=lambda tenant: shares[tenant], default=None)
        if longest is None or shares[longest] < shares.get(spec.tenant, 0) + 2:
            return None
        return self._waiting[self._queues[spec.model].newest(longest)][0]

    def open(self, model: str) -> None:
        """Make a model known: its tasks may wait from now on."""
        self._queues.setdefault(model, FairQueue())

    def close(self, model: str) -> None:
        """Forget a model, unless a task waits for it."""
        if not self._queues.get(model):
            self._queues.pop(model, None)

    def push(self, spec: TaskSpec, now: float) -> None:
        """Let a task wait; one that comes back stands where it stood among its tenant's."""
        self._queues[spec.model].push(spec.tenant, spec.task_id)
        self._waiting[spec.task_id] = (spec, now + self.timeout_s)
        self._n_special += spec.is_special

    def remove(self, spec: TaskSpec) -> None:
        """Take out a task that waits."""
        self._queues[spec.model].remove(spec.tenant, spec.task_id)
        self._drop(spec)

    def pop(
        self,
        model: str,
        *,
        has_credit: bool,
        place: Callable[[TaskSpec], Place | None],
        defers: Callable[[TaskSpec], bool],
    ) -> tuple[TaskSpec, Place] | None:
        """Take the next task that has a place to go to; plain ones have none without a credit."""
        if not has_credit and not self._n_special:
            return None
        found: list[tuple[TaskSpec, Place]] = []

        def eligible(task_id: int) -> bool:
            spec = self._waiting[task_id][0]
            where = place(spec) if has_credit or spec.is_special else None
            if where is not None:
                found.append((spec, where))
            return where is not None

        def is_deferred(task_id: int) -> bool:
            return has_credit and defers(self._waiting[task_id][0])

        if self._queues[model].pop(eligible, is_deferred) is None:
            return None
        self._drop(found[0][0])
        return found[0]

    def expired(self, now: float) -> list[TaskSpec]:
        """Take out the tasks whose time is over."""
        over: list[TaskSpec] = []
        for spec, deadline in self._waiting.values():
            if deadline > now:
                break
            over.append(spec)
        for spec in over:
            self.remove(spec)
        return over

    def charge(self, spec: TaskSpec, tokens: float) -> None:
        """Count tokens that the task's tenant was served."""
        self._queues[spec.model].charge(spec.tenant, tokens)

    def _drop(self, spec: TaskSpec) -> None:
        del self._waiting[spec.task_id]
        self._n_special -= spec.is_special
