"""Which waiting task goes next, and to which worker. Pure; the dispatcher performs it."""

from collections.abc import Collection

from gateway.pool.recovery.quarantine import Quarantine
from gateway.pool.routing.deferral import DeferralPolicy
from gateway.pool.routing.load_order import ModelWorkers
from gateway.pool.routing.policy import RouteChoice, RoutingPolicy
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.task import Task
from gateway.pool.tenants.slot_shares import SlotShares
from gateway.pool.tenants.task_queue import TaskQueue
from gateway.pool.workers.worker import Worker, WorkerState

_MAX_ASKED = 32
"""Maximum tasks of a look at the queue that may let others go first."""


class TaskPlacement:
    """Combines the order of the queue, the workers' credits and the routing."""

    def __init__(
        self,
        workers: dict[str, Worker],
        queue: TaskQueue,
        routing: RoutingPolicy,
        quarantine: Quarantine,
    ) -> None:
        self.deferral = DeferralPolicy(routing, timeout_s=queue.timeout_s)
        self._workers = workers
        self._queue = queue
        self._routing = routing
        self._quarantine = quarantine
        self.shares = SlotShares()
        self._held_back: dict[str, bool] = {}
        """By tenant, during one look at the queue."""
        self._free: dict[tuple[str, int, bool], bool] = {}
        """Whether a worker can take a task that no other one may run, during one look at the queue.

        By its name, the slot, and whether the task takes a credit.
        """
        self._can_continue: dict[str, bool] = {}
        """Whether a worker with a credit has a model, by its fingerprint, during one look."""

    def next(self, model: str, now: float) -> tuple[Task, RouteChoice] | None:
        """Find the first waiting task that has a worker to go to and gains nothing by waiting."""
        workers = self._routing.order.workers_of(model, now)
        has_rivals = len(self._queue) > 1
        n_asked = 0

        def defers(task: Task) -> bool:
            nonlocal n_asked
            n_asked += 1
            return has_rivals and n_asked <= _MAX_ASKED and self.deferral.defers(task, now)

        self._held_back.clear()
        self._free.clear()
        self._can_continue.clear()
        for task in self._queue.candidates(
            model,
            has_credit=bool(workers.able),
            defers=defers,
            is_held_back=lambda task: self._is_held_back(task, now),
            can_go=lambda task: self._is_free(task.spec, now),
        ):
            if not self._has_its_model(task, workers):
                continue
            if workers.has_free and self.deferral.keeps(task, self._workers, now):
                continue
            choice = self.find(task, now)
            if choice is not None and not self.deferral.reserves(task, choice, self._workers, now):
                return task, choice
        return None

    def can_start_now(self, task: Task, now: float) -> bool:
        """Return whether a new task could go to a worker at once."""
        return self._choice_now(task, now) is not None

    def ready_s(self, task: Task, now: float) -> float | None:
        """Predict the time to the first token of a task that could go at once; None if not."""
        choice = self._choice_now(task, now)
        if choice is None or (task.spec.takes_credit and not choice.worker.n_free):
            return None
        return choice.predicted_s

    def _choice_now(self, task: Task, now: float) -> RouteChoice | None:
        """Choose a worker for a new task as if it were next in the queue; None if it must wait."""
        if self._queue.turns_of_tenant(task):
            return None
        self._held_back.clear()
        return None if self._is_held_back(task, now) else self.find(task, now)

    def _is_held_back(self, task: Task, now: float) -> bool:
        """Return whether the tenant of a task must leave the free slots to others now."""
        tenant, model = task.spec.tenant, task.spec.model
        if not task.spec.takes_credit:
            return False
        if tenant not in self._held_back:
            workers = self._routing.order.workers_of(model, now)
            waiting = self._queue.tenants(model)
            self._held_back[tenant] = self.shares.holds_back(
                task, waiting, workers.n_slots, workers.n_free, now
            )
        return self._held_back[tenant]

    def find(self, task: Task, now: float) -> RouteChoice | None:
        """Choose the worker for a task; None if the task must wait."""
        spec = task.spec
        excluded = self._quarantine.excluded(task, now) if task.is_on_trial else set()
        if excluded is None:
            return None
        excluded = excluded | self._other_models(task)
        if spec.worker:
            return self._pinned(spec, now, excluded)
        if task.tried and self.has_other(task, now):
            excluded |= task.tried
        if spec.takes_credit:
            return self._routing.choose(spec, now, excluded)
        key = self._routing.order.workers_of(spec.model, now).for_slotless(excluded)
        return RouteChoice(self._workers[key]) if key is not None else None

    def has_other(self, task: Task, now: float) -> bool:
        """Return whether a ready worker may run a task that has not failed it."""
        spec = task.spec
        if spec.worker:
            owner = self._owner(spec, now)
            return owner is not None and owner.is_ready and owner.key not in task.tried
        workers = self._routing.order.workers_of(spec.model, now)
        return bool(workers.ready & ~workers.mask(task.tried | self._other_models(task)))

    def _has_its_model(self, task: Task, workers: ModelWorkers) -> bool:
        """Return whether a worker with a credit could take a task, as far as its model goes.

        Hundreds may wait for a model that no worker has any more: it is looked up once.
        """
        if not task.answer.has_started or task.spec.worker:
            return True
        model = task.model_fingerprint
        if model not in self._can_continue:
            able = workers.able & ~workers.mask(self._other_models(task))
            self._can_continue[model] = bool(able)
        return self._can_continue[model]

    def _other_models(self, task: Task) -> set[str]:
        """List the workers that cannot go on with what has come of an answer."""
        if not task.answer.has_started:
            return set()
        return {
            key
            for key, worker in self._workers.items()
            if worker.model_fingerprint != task.model_fingerprint
        }

    def _pinned(self, spec: TaskSpec, now: float, excluded: Collection[str]) -> RouteChoice | None:
        """Find the place of a task that only one worker may run."""
        owner = self._owner(spec, now)
        if owner is None or owner.key in excluded or not _can_take(owner, spec):
            return None
        return self._routing.pinned(spec, owner, now) if spec.takes_credit else RouteChoice(owner)

    def _is_free(self, spec: TaskSpec, now: float) -> bool:
        """Return whether what a task needs is free, unless any worker will do.

        Thousands may wait for one slot: for all of them it is looked up once.
        """
        if not spec.worker:
            return True
        need = (spec.worker, spec.slot, spec.takes_credit)
        if need not in self._free:
            owner = self._owner(spec, now)
            self._free[need] = owner is not None and _can_take(owner, spec)
        return self._free[need]

    def _owner(self, spec: TaskSpec, now: float) -> Worker | None:
        """Return the only worker that may run a task."""
        owner = self._routing.order.named(spec.worker, now)
        return owner if owner is not None and owner.model == spec.model else None


def _can_take(owner: Worker, spec: TaskSpec) -> bool:
    """Return whether the only worker that may run a task can take it now."""
    if owner.state is not WorkerState.READY:
        return False
    if not spec.takes_credit:
        # What the gateway itself asks of one worker is sent whatever the worker has to do.
        return True
    return owner.has_credit and (spec.slot < 0 or owner.has_place_in(spec.slot))
