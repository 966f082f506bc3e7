"""Which task runs where and what becomes of it: every decision of the pool, and no I/O.

Pure and synchronous. Time is passed in, and each call returns the actions that the pool performs.
A credit is taken in the line that assigns; the terminal message of that very attempt returns it,
also long after the task was given up.

Where else the state of a task is: docs/building/architecture.md.
"""

from collections.abc import Sequence

from gateway.pool.actions import Action, Assign, CancelTask, Deliver, Ejected, Fail
from gateway.pool.recovery.outliers import OutlierDetection
from gateway.pool.recovery.quarantine import Quarantine, refusal
from gateway.pool.routing.demand import DemandNotes
from gateway.pool.routing.placement import TaskPlacement
from gateway.pool.routing.policy import RouteChoice, RoutingPolicy
from gateway.pool.task import MAX_FAULTS, MoveCause, Task, TaskSpec, TaskState
from gateway.pool.tenants.charges import Charges
from gateway.pool.tenants.queue_limits import QueueLimits
from gateway.pool.tenants.task_queue import TaskQueue
from gateway.pool.workers import SlotMap, Worker, WorkerState
from protocol.errors import ErrorCode, TaskError, shutting_down
from protocol.wire.cached import Cached
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Done, Envelope, Failed, Heartbeat, Started, TaskKey, Terminal

_WORKER_FAULTS = (ErrorCode.INTERNAL, ErrorCode.UNAVAILABLE)
"""Failures of the worker rather than of the request: another worker may well succeed."""


class Dispatcher:
    """Workers, tasks and the queue of the whole pool."""

    def __init__(
        self,
        *,
        queue_size: int = 0,
        queue_timeout_s: float = 60.0,
        router: RoutingPolicy | None = None,
        settle_s: float = 0.0,
    ) -> None:
        self.workers: dict[str, Worker] = {}
        """By the key of their connection."""
        self.tasks: dict[int, Task] = {}
        """Every task that has not ended, those that were cancelled included."""
        self.router = router or RoutingPolicy()
        self.slots = SlotMap()
        self.cards: dict[str, ModelCard] = {}
        """The newest card of every model that is or was ready."""
        self.draining = False
        self.queue = TaskQueue(timeout_s=queue_timeout_s)
        self.quarantine = Quarantine(settle_s)
        self.outliers = OutlierDetection(self.workers)
        self.placement = TaskPlacement(self.workers, self.queue, self.router, self.quarantine)
        self.demand = DemandNotes(self.workers, self.queue, self.placement.deferral)
        self.n_shared = 0  # workers that other gateways use too
        self.limits = QueueLimits(
            self.queue, self.slots, self.workers, self.router, queue_size=queue_size
        )
        self._charges = Charges(self.queue)
        self._n_assigned = 0
        self._leaving: dict[str, Worker] = {}

    def __repr__(self) -> str:
        leases = sum(worker.n_leases for worker in self.workers.values())
        return (
            f"<Dispatcher workers={len(self.workers)} tasks={self.n_tasks} "
            f"waiting={len(self.queue)} leases={leases}{' draining' if self.draining else ''}>"
        )

    @property
    def n_tasks(self) -> int:
        """Tasks that somebody waits for."""
        return sum(task.state is not TaskState.CANCELLED for task in self.tasks.values())

    @property
    def models(self) -> dict[str, int]:
        """Waiting tasks of every known model."""
        return self.queue.depths()

    def submit(self, spec: TaskSpec, now: float) -> list[Action]:
        """Assign a task or let it wait; raises `TaskError` if it can do neither."""
        if self.draining:
            raise shutting_down()
        if spec.model not in self.queue:
            raise TaskError(ErrorCode.NOT_FOUND, f"model '{spec.model}' not found", param="model")
        task = Task(spec, now)
        self.quarantine.admit(task, now)
        actions: list[Action] = []
        if self.limits.is_full(spec.model):
            if self.placement.find(task, now) is not None:
                task.can_be_reserved = False  # it goes at once, or not at all
            else:
                actions = self._make_room(task)
        self.tasks[spec.task_id] = task
        self.queue.push(task)
        return actions + self._pump(spec.model, now)

    def cancel(self, task_id: int) -> list[Action]:
        """Give a task up; its terminal message returns its credit and says what it has cost."""
        task = self.tasks.get(task_id)
        if task is None or task.state is TaskState.CANCELLED:
            return []
        if task.state is TaskState.WAITING:
            self.queue.remove(task)
            self._end(task)
            return []
        task.cancel()
        return [CancelTask(task.worker, task_id, task.attempt)]

    def expire(self, now: float) -> list[Action]:
        """Fail the tasks that waited too long; end what holds others back."""
        self.router.tidy()
        actions: list[Action] = []
        models = {worker.model for worker in self.outliers.due(now)}
        if self.quarantine.convict(now):
            actions += self._refuse()
            models |= {task.spec.model for task in self._waiting() if task.is_on_trial}
        for task in self.queue.expired(now):
            self._end(task)
            actions.append(Fail(task.task_id, self.limits.too_late(task)))
        models |= set(self.placement.deferral.released(now))
        for model in sorted(models):
            actions += self._pump(model, now)
        return actions

    def abandon(self, model: str) -> list[Action]:
        """Fail the waiting tasks of a model that was unloaded."""
        error = TaskError(ErrorCode.UNAVAILABLE, f"model '{model}' was unloaded")
        waiting = [task for task in self._waiting() if task.spec.model == model]
        return [self._turn_away(task, error) for task in waiting]

    def drain(self) -> None:
        """Take nothing new; the queue is still served."""
        self.draining = True

    def worker_hello(self, key: str, name: str, model: str) -> None:
        """Note a worker that loads its model: tasks for that model may wait from now on."""
        self.workers[key] = Worker(key, name, model, self.router.order.changes)
        self.queue.open(model)

    def worker_ready(
        self, key: str, card: ModelCard, now: float, *, is_held: bool = False, granted: int = 0
    ) -> list[Action]:
        """Open the slots of a worker; one that is held gets no task before it is admitted."""
        worker = self.workers[key]
        if worker.state is not WorkerState.LOADING:
            return []
        worker.become(WorkerState.READY)
        worker.card, worker.model, worker.is_held = card, card.name, is_held
        worker.granted = granted
        return [] if is_held else self._opened(worker, card, now)

    def worker_admitted(self, key: str, now: float) -> list[Action]:
        """Open the slots of a worker that was held."""
        worker = self.workers[key]
        if not worker.is_held or worker.card is None:
            return []
        worker.is_held = False
        return self._opened(worker, worker.card, now)

    def _opened(self, worker: Worker, card: ModelCard, now: float) -> list[Action]:
        self.queue.open(card.name)
        self.cards[card.name] = card
        self.slots.reserve(worker.name, card)
        self.router.opened(worker)
        return self._pump(card.name, now)

    def worker_shares(self, key: str, beat: Heartbeat, now: float) -> list[Action]:
        """Take in what a worker grants to this gateway, and what others have there."""
        worker = self.workers[key]
        self.n_shared += beat.is_shared - worker.is_shared
        has_more = worker.share(beat)
        return self._pump(worker.model, now) if has_more else []

    def worker_sleeps(self, key: str, is_sleeping: bool) -> None:
        """Note whether a worker has unloaded its model."""
        worker = self.workers[key]
        if is_sleeping and not worker.is_sleeping:
            self.router.emptied(key)
        worker.is_sleeping = is_sleeping

    def worker_leaves(self, key: str, now: float) -> list[Action]:
        """Send nothing more to a worker that drains; others go on with what it has."""
        worker = self.workers[key]
        if worker.state is not WorkerState.LEAVING:
            worker.become(WorkerState.LEAVING)
            self._leaving[key] = worker
            self.outliers.gone(worker)
        return self._pump(worker.model, now)

    def worker_lost(self, key: str, now: float, *, died: bool = True) -> list[Action]:
        """Let others go on with the tasks of a worker; fail those that are bound to it."""
        worker = self.workers.pop(key)
        self.n_shared -= worker.is_shared
        self._leaving.pop(key, None)
        self.router.lost(worker)
        self.outliers.gone(worker)
        if died:
            self.quarantine.died(worker.tasks, self.tasks, now)
        actions: list[Action] = []
        for task in worker.tasks.values():
            if task.state is TaskState.CANCELLED:
                self._end(task)
            elif task.may_move:
                self._requeue(task, MoveCause.LOST, now)
            else:
                self._end(task)
                actions.append(Fail(task.task_id, task.verdict()))
        actions += [*self._refuse(), *self._pump(worker.model, now)]
        is_loading = any(one.model == worker.model for one in self.workers.values())
        if worker.model not in self.cards and not is_loading:
            self.queue.close(worker.model)  # it never was ready: nothing is known of it
        return actions

    def move(self, key: str, cause: MoveCause, now: float) -> list[Action]:
        """Let others go on with what a worker has, as far as they have free slots."""
        worker = self.workers[key]
        actions: list[Action] = []
        for task in list(worker.tasks.values()):
            may_move = task.spec.takes_credit and not task.spec.worker and task.may_move
            if task.state is TaskState.CANCELLED or not may_move or task.is_on_trial:
                continue
            task.tried.add(key)
            choice = self.placement.find(task, now)
            if choice is None or choice.worker is worker or not choice.worker.n_free:
                task.tried.discard(key)
                break
            actions.append(CancelTask(key, task.task_id, task.attempt))
            self.router.moved(task)
            worker.forsake(task)
            self._requeue(task, cause, now)
            self.queue.serve(task)
            actions.append(self._assign(task, choice, now))
        return actions

    def _eject(self, key: str, now: float) -> list[Action]:
        return [Ejected(key), *self.move(key, MoveCause.EJECTED, now)]

    def find(self, key: str, lease: TaskKey) -> Task | None:
        """Find the task of an attempt if this worker has that very attempt, cancelled or not."""
        task = self.tasks.get(lease.id)
        return task if task is not None and task.is_at(key, lease.attempt) else None

    def was_given_up(self, key: str, lease: TaskKey) -> bool:
        """Tell whether an attempt was cancelled or goes on elsewhere, and has not ended yet."""
        task = self.find(key, lease)
        if task is not None:
            return task.state is TaskState.CANCELLED
        worker = self.workers.get(key)
        return worker is not None and TaskKey(lease.id, lease.attempt) in worker.forsaken

    def started(self, key: str, envelope: Envelope, now: float) -> bool:
        """Note the slot of a task and what its prompt costs; false if nobody waits for it."""
        task, message = self.find(key, envelope.task), envelope.payload
        assert isinstance(message, Started)
        if task is None or task.has_started:
            return False
        task.start(message, now)
        if task.spec.takes_credit:
            self.router.started(task, now)
        self._charges.started(task)
        return task.state is TaskState.STARTED

    def progressed(self, key: str, lease: TaskKey) -> bool:
        """Note that a client may see how far its prompt is read; false if nobody waits for it."""
        task = self.find(key, lease)
        if task is None or task.state is TaskState.CANCELLED:
            return False
        task.show()
        return True

    def prompt_read(self, key: str, lease: TaskKey, now: float) -> list[Action]:
        """Note that a worker writes the answer: called for each delta until `Task.is_read`."""
        task = self.find(key, lease)
        if task is None:
            return []
        actions: list[Action] = []
        if not task.n_deltas:
            if task.spec.takes_credit:
                self.router.read(task, now)
                if self.outliers.read(task, now):
                    actions = self._eject(key, now)
            task.show()
            task.n_faults = 0
        was_on_trial = task.is_on_trial
        task.n_deltas += 1
        task.is_read = self.quarantine.progressed(task)
        if task.is_read and was_on_trial:
            actions += self._pump(task.spec.model, now)
        return actions

    def cached(self, key: str, message: Cached) -> None:
        """Note what a worker says of its prefix cache."""
        self.router.cached(key, message)

    def ended(self, key: str, envelope: Envelope, now: float) -> list[Action]:
        """Take the credit back and pass the result on, if somebody still waits for it."""
        task, message = self.find(key, envelope.task), envelope.payload
        worker = self.workers.get(key)
        if worker is None:
            return []
        if task is None:
            was_forsaken = worker.relinquish(envelope.task)
            return self._pump(worker.model, now) if was_forsaken else []
        assert isinstance(message, Terminal)
        worker.release(task)
        if task.spec.takes_credit:
            self.router.ended(task, message, now)
        is_fault = isinstance(message, Failed) and message.code in _WORKER_FAULTS
        is_ejected = self.outliers.ended(task, now, failed=is_fault)
        actions = self._conclude(task, envelope, now, is_fault=is_fault)
        if is_ejected:
            actions += self._eject(key, now)
        return actions + self._pump(worker.model, now)

    def _conclude(
        self, task: Task, envelope: Envelope, now: float, *, is_fault: bool
    ) -> list[Action]:
        """End a task with its result, or let another worker try what this one has failed."""
        message = envelope.payload
        is_wanted = task.state is not TaskState.CANCELLED
        if is_wanted and is_fault:
            task.n_faults += 1
            task.tried.add(task.worker)
            has_place = self.placement.has_other(task, now) or task.answer.has_begun
            if task.may_move and task.n_faults < MAX_FAULTS and has_place:
                self._requeue(task, MoveCause.FAILED, now)
                return []
        self._charges.ended(task, message)
        if isinstance(message, Done) and is_wanted:
            self.quarantine.cleared(task)
        self._end(task)
        if not is_wanted:
            return []
        if isinstance(message, Failed) and is_fault and task.n_faults >= MAX_FAULTS:
            return [Fail(task.task_id, task.verdict(message.message))]
        return [Deliver(envelope)]

    def _make_room(self, task: Task) -> list[Action]:
        """Take a place in a full queue from another task; raises `TaskError`."""
        return [self._turn_away(*self.limits.displaced_by(task))]

    def _pump(self, model: str, now: float) -> list[Action]:
        """Assign waiting tasks of a model as long as there is a worker to take one."""
        actions: list[Action] = []
        for worker in self._leaving.values():
            if worker.model == model and worker.tasks:
                actions += self.move(worker.key, MoveCause.DRAINED, now)
        while self.queue and (found := self.placement.next(model, now)) is not None:
            self.queue.serve(found[0])
            actions.append(self._assign(*found, now))
        return actions

    def _assign(self, task: Task, choice: RouteChoice, now: float) -> Assign:
        """Take the credit of a task that has just left the queue."""
        worker = choice.worker
        self.placement.deferral.forget(task)
        task.assign(worker.key, worker.name, choice.reason, now)
        worker.take(task)
        self._n_assigned += 1
        worker.last_used = self._n_assigned
        if task.spec.takes_credit:
            self.router.assigned(task, choice)
        self.outliers.assigned(task, choice.predicted_s)
        self._charges.assigned(task)
        return Assign(worker.key, task.task_id, task.attempt, task.slot)

    def _requeue(self, task: Task, cause: MoveCause, now: float) -> None:
        """Put a task back at its place in the queue: it goes on, or begins anew."""
        self._charges.refund(task)
        task.requeue(cause, now)
        self.queue.push(task)

    def _waiting(self) -> list[Task]:
        return [task for task in self.tasks.values() if task.state is TaskState.WAITING]

    def _refuse(self) -> Sequence[Action]:
        """Fail the waiting tasks whose request is in quarantine."""
        return [
            self._turn_away(task, refusal(task.suspect))
            for task in self._waiting()
            if task.suspect is not None and task.suspect.refused_until
        ]

    def _turn_away(self, task: Task, error: TaskError) -> Fail:
        """End a task that waits."""
        self.queue.remove(task)
        self._end(task)
        return Fail(task.task_id, error)

    def _end(self, task: Task) -> None:
        """Forget a task that no worker and no queue has any more."""
        task.end()
        del self.tasks[task.task_id]
        self.placement.deferral.forget(task)
