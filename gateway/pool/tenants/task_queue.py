"""The tasks that wait: a fair queue for each model, and a deadline for every task.

Pure. It keeps ids in their order and references to their records; who takes one is not its concern.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice

from gateway.pool.tasks.task import Task
from gateway.pool.tenants.fair_queue import FairQueue
from gateway.pool.tenants.tenant_concurrency import ConcurrencyElsewhere, TenantConcurrency

_MAX_PLACES = 1000
"""Maximum waiting tasks of a model whose places are computed: more take too long on the loop."""

_Need = tuple[str, int, bool]
"""The worker and the slot that a task needs, and whether it needs a credit."""


class TaskQueue:
    """Waiting tasks, by model."""

    def __init__(self, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._queues: dict[str, FairQueue] = {}
        self._tasks: dict[int, Task] = {}
        """In order of their deadlines, as all wait equally long."""
        self._n_slotless = 0
        self._special: dict[str, dict[_Need, dict[int, Task]]] = {}
        """Tasks that can go without a free credit, or to one worker only, by model and need."""
        self._anywhere: dict[str, dict[int, Task]] = {}
        """Tasks that any worker with a credit may run, by model, in order of arrival."""
        self._bound: dict[str, dict[int, dict[int, Task]]] = {}
        """Tasks that need a credit of one worker, by its name and the slot; none is empty."""
        self.concurrency = TenantConcurrency()
        self.admitted: set[str] = set()
        """Models of tasks that were held and compete now; emptied when tasks are assigned."""

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        return f"<TaskQueue {' '.join(f'{model}:{n}' for model, n in self.depths().items())}>"

    def __contains__(self, model: str) -> bool:
        return model in self._queues

    @property
    def ids(self) -> set[int]:
        """Ids of all waiting tasks."""
        return set(self._tasks)

    def waiting(self, model: str) -> tuple[int, float]:
        """Count the tasks that any worker with a credit may run; return since when the first waits.

        Since 0 if there is none.
        """
        tasks = self._anywhere.get(model)
        return (len(tasks), next(iter(tasks.values())).waits_since) if tasks else (0, 0.0)

    def contested(self) -> set[str]:
        """Return the models of which a task waits for any worker with a credit."""
        return {model for model, tasks in self._anywhere.items() if tasks}

    def bound_to(self, worker: str) -> Mapping[int, Collection[Task]]:
        """Return the tasks that need a credit of the worker of this name, by slot."""
        return {slot: tasks.values() for slot, tasks in self._bound.get(worker, {}).items()}

    def unbind(self, worker: str) -> set[str]:
        """Let any worker run the tasks that wait for slots of the worker of this name.

        Return their models. Those among them that are held for their tenant's limit compete later,
        for any worker too.
        """
        models = {task.spec.model for tasks in self.bound_to(worker).values() for task in tasks}
        competing = set[int]().union(*self._bound.pop(worker, {}).values())
        for task in self._tasks.values():
            if task.spec.worker == worker and task.spec.takes_credit:
                self._drop_special(task)
                task.forget_slot()
                if task.task_id in competing:
                    self._compete(task)
        return models

    def depths(self) -> dict[str, int]:
        """Count the waiting tasks of every known model."""
        return {model: len(queue) for model, queue in self._queues.items()}

    def shares(self) -> dict[str, dict[str, int]]:
        """Count the waiting tasks of each tenant that has any, by model."""
        return {model: dict(queue.shares()) for model, queue in self._queues.items() if len(queue)}

    def tenants(self, model: str) -> Collection[str]:
        """Return the tenants of which a task of this model waits."""
        return self._queues[model].tenants

    def depth(self, model: str) -> int:
        """Count the waiting tasks of one model."""
        return len(self._queues[model])

    def displaced_by(self, task: Task) -> Task | None:
        """Find the task that gives its place in a full queue to this one; None if none has to.

        It is the last one of a tenant of a lower class, or of the tenant with most waiting tasks,
        if that tenant has at least two more than this task's (longest queue drop): a tenant that
        waits alone may fill the queue, and one that comes late still gets an equal share of it.
        An answer that has begun keeps its place.
        """
        queue, spec = self._queues[task.spec.model], task.spec
        longest = queue.longest(spec.limits.priority)
        if longest is None:
            return None
        shares = queue.shares()
        is_lower = queue.rank(longest) > spec.limits.priority
        if not is_lower and shares[longest] < shares.get(spec.tenant, 0) + 2:
            return None
        last = self._tasks[queue.newest(longest)]
        return None if last.answer.has_started else last

    def position(self, task: Task, usual_answer: int) -> int:
        """Estimate how many tasks of its model are served until it is a waiting task's turn."""
        spec = task.spec
        answer = usual_answer if spec.n_answer is None else min(spec.n_answer, usual_answer)
        cost = spec.n_tokens + answer
        entry = (spec.priority, task.task_id)
        return self._queues[spec.model].position(spec.tenant, entry, spec.limits.priority, cost)

    def turns_of_tenant(self, task: Task) -> float:
        """Return how often each of a tenant's running tasks must end until this one may compete."""
        spec = task.spec
        if not spec.limits.concurrent:
            return 0.0
        entry = (spec.priority, task.task_id)
        n_held = sum(queue.n_held(spec.tenant, entry) for queue in self._queues.values())
        return self.concurrency.turns(task, n_held)

    def open(self, model: str) -> None:
        """Make a model known: its tasks may wait from now on."""
        self._queues.setdefault(model, FairQueue())

    def close(self, model: str) -> None:
        """Forget a model, unless a task waits for it."""
        if not self._queues.get(model):
            self._queues.pop(model, None)

    def push(self, task: Task) -> None:
        """Add a task; one that comes back gets its old place among its tenant's."""
        spec = task.spec
        if not task.attempt and self.concurrency.note_limit(task):
            self.admit(spec.tenant)  # those that came before go first
        is_held = not self.concurrency.take(task)
        self._queues[spec.model].push(
            spec.tenant,
            task.task_id,
            priority=spec.priority,
            rank=spec.limits.priority,
            is_held=is_held,
        )
        self._tasks[task.task_id] = task
        self._n_slotless += not spec.takes_credit
        if not is_held:
            self._compete(task)

    def remove(self, task: Task) -> None:
        """Take out a task that waits no longer."""
        spec = task.spec
        self._queues[spec.model].remove(spec.tenant, task.task_id, spec.priority)
        self._drop(task)

    def serve(self, task: Task) -> None:
        """Take out a task because it is its tenant's turn."""
        spec = task.spec
        self._queues[spec.model].serve(spec.tenant, task.task_id, spec.priority)
        self._drop(task)

    def ended(self, task: Task) -> None:
        """Note that a task has ended: another one of its tenant may compete for it."""
        if self.concurrency.give_back(task):
            self.admit(task.spec.tenant)

    def admit(self, tenant: str) -> None:
        """Let as many held tasks of a tenant compete as its limit allows."""
        while (found := self._first_held(tenant)) is not None and self.concurrency.take(found):
            self._queues[found.spec.model].admit(tenant)
            self._compete(found)
            self.admitted.add(found.spec.model)

    def share_concurrency(self, elsewhere: Mapping[str, ConcurrencyElsewhere]) -> None:
        """Take in what other gateways have of tenants whose number of tasks is limited."""
        touched = self.concurrency.elsewhere.keys() | elsewhere.keys()
        self.concurrency.elsewhere = elsewhere
        for tenant in touched:
            self.admit(tenant)

    def _first_held(self, tenant: str) -> Task | None:
        """Find the held task of a tenant that is next, whatever its model."""
        held = (queue.first_held(tenant) for queue in self._queues.values())
        first = min((entry for entry in held if entry is not None), default=None)
        return self._tasks[first[1]] if first is not None else None

    def _compete(self, task: Task) -> None:
        if (place := self._place(task)) is not None:
            place[task.task_id] = task
        if task.spec.is_special:
            needs = self._special.setdefault(task.spec.model, {})
            needs.setdefault(_need(task), {})[task.task_id] = task

    def _drop_special(self, task: Task) -> None:
        needs, need = self._special.get(task.spec.model, {}), _need(task)
        if (alike := needs.get(need)) is not None:
            alike.pop(task.task_id, None)
            if not alike:
                del needs[need]

    def candidates(
        self,
        model: str,
        *,
        has_credit: bool,
        defers: Callable[[Task], bool],
        is_held_back: Callable[[Task], bool],
        can_go: Callable[[Task], bool],
    ) -> Iterator[Task]:
        """List the tasks of a model in the order of service; only special ones without a credit.

        Those that are held back are left out, and so are special ones that cannot go now: what one
        needs that is not free, others need, too. The queue must not change between two of them.
        """
        if not (has_credit and self._anywhere.get(model)):
            tasks = self._special_in_order(model, can_go)
            yield from (task for task in tasks if not is_held_back(task))
            return
        waiting, has_slotless = self._tasks, self._n_slotless > 0
        ids = self._queues[model].candidates(
            lambda i: defers(waiting[i]),
            lambda i: not has_slotless and is_held_back(waiting[i]),
        )
        for task_id in ids:
            task = waiting[task_id]
            if task.spec.is_special and not can_go(task):
                continue
            if not (has_slotless and is_held_back(task)):
                yield task

    def _special_in_order(self, model: str, can_go: Callable[[Task], bool]) -> list[Task]:
        """List the special tasks that can go now."""
        found: list[Task] = []
        for alike in self._special.get(model, {}).values():
            if can_go(next(iter(alike.values()))):
                found += alike.values()
        place = self._queues[model].place
        found.sort(key=lambda task: (place(task.spec.tenant), task.spec.priority, task.task_id))
        return found

    def places(self) -> dict[int, int]:
        """Return the places of the first tasks of each model, by their ids; 1 is next."""
        found: dict[int, int] = {}
        for queue in self._queues.values():
            first = islice(queue.candidates(lambda _: False), _MAX_PLACES)
            found.update((task_id, place) for place, task_id in enumerate(first, 1))
        return found

    def expired(self, now: float) -> list[Task]:
        """Take out the tasks whose deadline has passed."""
        over: list[Task] = []
        for task in self._tasks.values():
            if task.waits_since + self.timeout_s > now:
                break
            over.append(task)
        for task in over:
            self.remove(task)
        return over

    def charge(self, task: Task, tokens: float) -> None:
        """Count tokens that the task's tenant was served."""
        self._queues[task.spec.model].charge(task.spec.tenant, tokens)

    def assume(self, task: Task, tokens: float) -> None:
        """Add to the tokens charged to the task's tenant that are only assumed."""
        self._queues[task.spec.model].assume(task.spec.tenant, tokens)

    def _drop(self, task: Task) -> None:
        del self._tasks[task.task_id]
        self._n_slotless -= not task.spec.takes_credit
        self._drop_special(task)
        if (place := self._place(task)) is not None:
            place.pop(task.task_id, None)
            if not place and task.spec.worker:
                del self._bound[task.spec.worker][task.spec.slot]
                if not self._bound[task.spec.worker]:
                    del self._bound[task.spec.worker]

    def _place(self, task: Task) -> dict[int, Task] | None:
        """Return where a task that needs a credit stands; None for any other."""
        if not task.spec.takes_credit:
            return None
        if task.spec.worker:
            return self._bound.setdefault(task.spec.worker, {}).setdefault(task.spec.slot, {})
        return self._anywhere.setdefault(task.spec.model, {})


def _need(task: Task) -> _Need:
    spec = task.spec
    return spec.worker, spec.slot, spec.takes_credit
