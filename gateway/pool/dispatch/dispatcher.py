"""Which task runs where and what becomes of it: every decision of the pool, and no I/O.

Pure and synchronous. Time is passed in, and each call returns the actions that the pool performs.
A credit is taken in the line that assigns; the terminal message of that very attempt returns it,
also long after the task was given up.

Where else the state of a task is: docs/building/architecture.md.
"""

import math
from collections.abc import Callable, Set

from gateway.pool.dispatch.actions import Action, CancelTask, Deliver, Ejected, Fail
from gateway.pool.dispatch.assignment import Assignment
from gateway.pool.dispatch.connected_workers import ConnectedWorkers
from gateway.pool.dispatch.queue_limits import QueueLimits
from gateway.pool.dispatch.task_book import TaskBook
from gateway.pool.recovery.outliers import OutlierDetection
from gateway.pool.recovery.quarantine import Quarantine
from gateway.pool.routing.demand import DemandReports
from gateway.pool.routing.placement import TaskPlacement
from gateway.pool.routing.policy import RoutingPolicy
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.task import MAX_FAULTS, MoveCause, Task, TaskState
from gateway.pool.tenants.allowances import Allowances
from gateway.pool.tenants.charges import Charges
from gateway.pool.tenants.task_queue import TaskQueue
from gateway.pool.workers.worker import WorkerState
from protocol.errors import ErrorCode, TaskError, shutting_down
from protocol.wire.cached import Cached
from protocol.wire.facts import ModelCard, Usage
from protocol.wire.messages import (
    Done,
    Envelope,
    Failed,
    Heartbeat,
    PromptRead,
    Started,
    TaskKey,
    Terminal,
)

_WORKER_FAULTS = (ErrorCode.INTERNAL, ErrorCode.UNAVAILABLE)
"""Failures of the worker rather than of the request: another worker may well succeed."""


class Dispatcher:
    """Workers, tasks and the queue of the whole pool."""

    def __init__(
        self,
        *,
        queue_size: int = 0,
        queue_timeout_s: float = 60.0,
        settle_s: float = 0.0,
        on_settled: Callable[[Task], None] = lambda _: None,
    ) -> None:
        """`on_settled` is called once for each task that has ended, when its cost is known."""
        self.routing = RoutingPolicy()
        self.draining = False
        self.queue = TaskQueue(timeout_s=queue_timeout_s)
        self.connected = ConnectedWorkers(self.routing, self.queue)
        self.workers = self.connected.by_key
        self.cards = self.connected.cards
        self.slots = self.connected.slots
        self.quarantine = Quarantine(settle_s)
        self.outliers = OutlierDetection(self.workers)
        self.placement = TaskPlacement(self.workers, self.queue, self.routing, self.quarantine)
        self.demand = DemandReports(
            self.workers, self.queue, self.placement.deferral, self.routing.order
        )
        self.limits = QueueLimits(self.queue, self.slots, self.routing, queue_size=queue_size)
        self.allowances = Allowances()
        charges = Charges(
            self.queue, lambda model: self.routing.throughput(model).answer_per_s.value
        )
        self.book = TaskBook(self.queue, charges, self.placement, self.allowances, on_settled)
        self.tasks = self.book.tasks
        self._assignment = Assignment(
            self.book, self.placement, self.routing, self.outliers, self.quarantine
        )

    def __repr__(self) -> str:
        n_taken = sum(worker.n_taken for worker in self.workers.values())
        return (
            f"<Dispatcher workers={len(self.workers)} tasks={self.n_tasks} "
            f"waiting={len(self.queue)} taken={n_taken}{' draining' if self.draining else ''}>"
        )

    @property
    def n_tasks(self) -> int:
        """Tasks that were not cancelled."""
        return sum(task.state is not TaskState.CANCELLED for task in self.tasks.values())

    # ---- requests -----------------------------------------------------------------------------

    def submit(self, spec: TaskSpec, now: float) -> list[Action]:
        """Assign a task or let it wait; raises `TaskError` if it can do neither."""
        if self.draining:
            raise shutting_down()
        if spec.model not in self.queue:
            raise TaskError(ErrorCode.NOT_FOUND, f"model '{spec.model}' not found", param="model")
        if self.connected.is_unloaded(spec.model):
            raise self.connected.unloaded_error(spec.model)
        task = Task(spec, now)
        if self._is_leaving(spec.worker):
            task.forget_slot()
        self.quarantine.admit(task, now)
        self.allowances.reserve(spec, self.routing.answer_tokens(spec.model))
        try:
            if math.isfinite(spec.start_within_s):
                self.limits.check_in_time(task, self.placement.ready_s(task, now))
            actions = self._find_place(task, now)  # last: it may end another task
        except TaskError:
            self.allowances.settle(spec.tenant, spec.task_id, 0)
            raise
        self.book.add(task)
        actions += self._assignment.assign_waiting(spec.model, now)
        return actions + self._assign_admitted(now)

    def _find_place(self, task: Task, now: float) -> list[Action]:
        """Make room in a full queue; raises `TaskError` if there is no place for a task."""
        if not self.limits.is_full(task.spec.model):
            return []
        if not self.placement.can_start_now(task, now):
            return [self.book.turn_away(*self.limits.displaced_by(task))]
        task.can_be_reserved = False  # it goes at once, or not at all
        return []

    def cancel(self, task_id: int, now: float = 0.0) -> list[Action]:
        """Give a task up; its terminal message returns its credit and says what it has cost."""
        task = self.tasks.get(task_id)
        if task is None or task.state is TaskState.CANCELLED:
            return []
        if task.state is TaskState.WAITING:
            self.queue.remove(task)
            self.book.end(task)
            return self._assign_admitted(now)
        task.cancel(now)
        return [CancelTask(task.worker, task_id, task.attempt)]

    def expire(self, now: float) -> list[Action]:
        """Fail the tasks that waited too long; end reservations and suspicions that are over."""
        self.routing.index.prune()
        self.allowances.prune()
        actions: list[Action] = []
        models = {due.model for due in self.outliers.due(now)}
        if self.quarantine.refuse_held(now):
            actions += self.book.refuse_suspects(now)
            models |= {task.spec.model for task in self.book.waiting() if task.is_on_trial}
            actions += self._assignment.proceed(now)
        actions += self.book.refuse_late(self.workers.values(), self.limits.too_late, now)
        for worker in self.workers.values():
            worker.look()
        models |= self.routing.order.uneven(now)
        models.update(*map(self.queue.unbind, self.connected.give_up_lost(now)))
        models |= set(self.placement.deferral.released(now)) | self.placement.shares.held_back
        self.placement.shares.held_back.clear()
        return [*actions, *self._assign_all(models, now), *self._assign_admitted(now)]

    def _assign_all(self, models: Set[str], now: float) -> list[Action]:
        """Assign what waits for these models."""
        assigned = (self._assignment.assign_waiting(model, now) for model in sorted(models))
        return [action for actions in assigned for action in actions]

    def _assign_admitted(self, now: float) -> list[Action]:
        """Assign the tasks that may compete since another one of their tenant has ended."""
        actions: list[Action] = []
        while self.queue.admitted:
            actions += self._assignment.assign_waiting(self.queue.admitted.pop(), now)
        return actions

    def abandon(self, model: str, why: str = "was unloaded") -> list[Action]:
        """Fail the waiting tasks of a model that no worker serves here any more.

        Those that its last worker still has fail when the worker is missed.
        """
        self.connected.unload(model, why)
        error = self.connected.unloaded_error(model)
        waiting = [task for task in self.book.waiting() if task.spec.model == model]
        return [self.book.turn_away(task, error) for task in waiting]

    def drain(self) -> None:
        """Take nothing new; the queue is still served."""
        self.draining = True

    # ---- workers ------------------------------------------------------------------------------

    def worker_hello(self, key: str, name: str, model: str) -> None:
        """Note a worker that loads its model: tasks for that model may wait from now on."""
        self.connected.hello(key, name, model)

    def worker_ready(
        self, key: str, card: ModelCard, now: float, *, is_held: bool = False, granted: int = 0
    ) -> list[Action]:
        """Open the slots of a worker; one that is held gets no task before it is admitted."""
        is_open = self.connected.ready(key, card, is_held=is_held, granted=granted)
        return self._assignment.assign_waiting(card.name, now) if is_open else []

    def worker_admitted(self, key: str, now: float) -> list[Action]:
        """Open the slots of a worker that was held."""
        is_open = self.connected.admitted(key)
        return self._assignment.assign_waiting(self.workers[key].model, now) if is_open else []

    def worker_shares(self, key: str, heartbeat: Heartbeat, now: float) -> list[Action]:
        """Store the credits of a worker for this gateway, and the tasks of other gateways there."""
        has_more = self.connected.shares(key, heartbeat)
        return self._assignment.assign_waiting(self.workers[key].model, now) if has_more else []

    def worker_leaves(self, key: str, now: float) -> list[Action]:
        """Assign nothing more to a worker that drains; its tasks move to others."""
        worker = self.workers[key]
        if worker.state is not WorkerState.LEAVING:
            worker.become(WorkerState.LEAVING)
            self._assignment.leaving[key] = worker
            self.outliers.worker_left(worker)
        unbound = self.queue.unbind(worker.name) if self._is_leaving(worker.name) else set()
        return self._assign_all({worker.model} | unbound, now)

    def worker_forgotten(self, name: str, now: float) -> tuple[bool, list[Action]]:
        """Free the slot ids of a worker that will not come back, unless it is connected."""
        if not self.connected.forget(name):
            return False, []
        return True, self._assign_all(self.queue.unbind(name), now)

    def _is_leaving(self, name: str) -> bool:
        """Return whether a worker of this name drains or is gone, and none has taken its place."""
        if self.connected.is_gone(name):
            return True
        leaving = any(other.name == name for other in self._assignment.leaving.values())
        return leaving and all(
            worker.name != name or worker.state is WorkerState.LEAVING
            for worker in self.workers.values()
        )

    def worker_lost(self, key: str, now: float, *, died: bool = True) -> list[Action]:
        """Move the tasks of a lost worker to others; fail those that are bound to it."""
        worker = self.connected.lost(key, now)
        self._assignment.leaving.pop(key, None)
        self.outliers.worker_left(worker)
        if died:
            self.quarantine.died(key, worker.tasks, self.tasks, now)
        for task_key, moved in worker.abandoned.items():
            self.book.attempt_ended(moved, task_key.attempt, None, now)
        actions: list[Action] = []
        for task in worker.tasks.values():
            self.book.attempt_ended(task, task.attempt, None, now)
            if task.state is TaskState.CANCELLED:
                self.book.end(task)
            elif task.may_move:
                if worker.state is WorkerState.LEAVING:
                    task.forget_slot()
                self.book.put_back(task, MoveCause.LOST, now)
            else:
                self.book.end(task)
                actions.append(Fail(task.task_id, task.verdict()))
        actions += [
            *self.book.refuse_suspects(now),
            *self._assignment.assign_waiting(worker.model, now),
        ]
        if self.connected.is_unloaded(worker.model):
            actions += self.abandon(worker.model)
        self.connected.close(worker.model)
        return actions + self._assign_admitted(now)

    def _eject(self, key: str, cause: str, now: float) -> list[Action]:
        moved = self._assignment.move(self.workers[key], MoveCause.EJECTED, now)
        return [Ejected(key, cause), *moved]

    # ---- answers ------------------------------------------------------------------------------

    def was_given_up(self, key: str, task_key: TaskKey) -> bool:
        """Return whether an attempt was cancelled or moved, and its worker has not ended it yet."""
        task = self.book.find(key, task_key)
        if task is not None:
            return task.state is TaskState.CANCELLED
        worker = self.workers.get(key)
        return worker is not None and TaskKey(task_key.id, task_key.attempt) in worker.abandoned

    def started(self, key: str, envelope: Envelope, now: float) -> bool:
        """Note the slot of a task and the cost of its prompt; false if the task was cancelled."""
        task, message = self.book.find(key, envelope.task), envelope.payload
        assert isinstance(message, Started)
        if task is None or task.has_started:
            return False
        task.start(message, now)
        if task.spec.takes_credit:
            self.routing.started(task, now)
        self.book.charges.started(task)
        return task.state is TaskState.STARTED

    def progressed(self, key: str, task_key: TaskKey) -> bool:
        """Note that a client may see its prompt's progress; false if the task was cancelled."""
        task = self.book.find(key, task_key)
        if task is None or task.state is TaskState.CANCELLED:
            return False
        task.show()
        return True

    def delta_came(self, key: str, task_key: TaskKey, now: float) -> list[Action]:
        """Note a delta of an answer: called for each until `Task.is_trusted`."""
        task = self.book.find(key, task_key)
        if task is None:
            return []
        actions: list[Action] = []
        if not task.n_deltas:
            if task.spec.takes_credit:
                self.routing.read(task, now)
                if cause := self.outliers.read(task, now):
                    actions = self._eject(key, cause, now)
            task.show()
            task.attempts[-1].first_at = now
            task.n_faults = 0
        was_on_trial = task.is_on_trial
        task.n_deltas += 1
        task.is_trusted = self.quarantine.progressed(task)
        if task.is_trusted and was_on_trial:
            actions += self._assignment.assign_waiting(task.spec.model, now)
        return actions

    def prompt_cost(
        self, key: str, task_key: TaskKey, message: PromptRead, now: float
    ) -> list[Action]:
        """Note the cost of a prompt so far, as its worker reports it, also of a cancelled task."""
        self.accounted(key, task_key, Usage(n_read=message.n_read, n_cached=message.n_cached))
        task = self.book.find(key, task_key)
        if task is None or not (message.is_paused and task.is_paused):
            return []
        task.is_ready = True
        self.routing.read(task, now)
        return self._assignment.proceed(now)

    def accounted(self, key: str, task_key: TaskKey, usage: Usage) -> None:
        """Note what an attempt that a worker has not ended has cost so far."""
        task = self.of_attempt(key, task_key)
        if task is not None:
            task.attempts[task_key.attempt].account(usage)

    def of_attempt(self, key: str, task_key: TaskKey) -> Task | None:
        """Find the task of an attempt that a worker has not ended, also if it went elsewhere."""
        task, worker = self.book.find(key, task_key), self.workers.get(key)
        if task is None and worker is not None:
            task = worker.abandoned.get(TaskKey(task_key.id, task_key.attempt))
        return task

    def cached(self, key: str, message: Cached) -> None:
        """Store a worker's report on its prefix cache."""
        self.routing.cached(key, message)

    def ended(self, key: str, envelope: Envelope, now: float) -> list[Action]:
        """Return the credit, and pass the result on unless the task was cancelled."""
        task, message = self.book.find(key, envelope.task), envelope.payload
        worker = self.workers.get(key)
        if worker is None:
            return []
        assert isinstance(message, Terminal)
        if task is None:
            moved = worker.release_abandoned(envelope.task)
            if moved is None:
                return []
            self.book.attempt_ended(moved, envelope.task.attempt, message, now)
            return self._assignment.assign_waiting(worker.model, now)
        worker.release(task)
        self.book.attempt_ended(task, task.attempt, message, now)
        if task.spec.takes_credit:
            self.routing.ended(task, message, now)
        is_fault = isinstance(message, Failed) and message.code in _WORKER_FAULTS
        cause = self.outliers.ended(task, now, failed=is_fault)
        actions = self._conclude(task, envelope, now, is_fault=is_fault)
        if cause:
            actions += self._eject(key, cause, now)
        return [
            *actions,
            *self._assignment.assign_waiting(worker.model, now),
            *self._assign_admitted(now),
        ]

    def _conclude(
        self, task: Task, envelope: Envelope, now: float, *, is_fault: bool
    ) -> list[Action]:
        """End a task with its result, or let another worker try what this one has failed."""
        message = envelope.payload
        is_wanted = task.state is not TaskState.CANCELLED
        if is_wanted and is_fault:
            task.n_faults += 1
            task.tried.add(task.worker)
            has_place = self.placement.has_other(task, now) or task.answer.has_started
            if task.may_move and task.n_faults < MAX_FAULTS and has_place:
                self.book.put_back(task, MoveCause.FAILED, now)
                return []
        self.book.charges.ended(task, message, now)
        if isinstance(message, Done) and is_wanted:
            self.quarantine.cleared(task)
        self.book.end(task)
        if not is_wanted:
            return []
        if isinstance(message, Failed) and is_fault and task.n_faults >= MAX_FAULTS:
            return [Fail(task.task_id, task.verdict(message.message))]
        return [Deliver(envelope)]
