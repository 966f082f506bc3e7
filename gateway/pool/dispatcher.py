"""Which task runs where and what becomes of it: every decision of the pool, and no I/O.

Pure and synchronous. Time is passed in, and each call returns the actions that the pool performs.
A credit is taken in the line that assigns; the terminal message of that very attempt returns it,
also long after the task was given up.

State of one task is in three places of the gateway:

| place | holds | until |
|---|---|---|
| `Dispatcher.tasks` | the record: spec, state, attempt, worker, delivered, charged | it is ended |
| streams of `TaskTransport` | the request as it is sent, messages not fetched yet | it is read |
| `WorkerConnection.outbox` | messages to a worker | the next turn of the loop |

The queue, the workers, routing and deferral keep ids or references to the record in an order of
their own, or sums over them.
"""

import math

from gateway.pool.actions import Action, Assign, CancelTask, Deliver, Fail
from gateway.pool.routing.demand import DemandNotes
from gateway.pool.routing.placement import TaskPlacement
from gateway.pool.routing.policy import RouteChoice, RoutingPolicy
from gateway.pool.task import MAX_FAULTS, Task, TaskSpec, TaskState
from gateway.pool.tenants.charges import Charges
from gateway.pool.tenants.task_queue import TaskQueue
from gateway.pool.workers import SlotMap, Worker, WorkerState
from protocol.errors import ErrorCode, TaskError, shutting_down
from protocol.wire.cached import Cached
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Envelope, Failed, Heartbeat, Started, TaskKey, Terminal

_MAX_RETRY_AFTER_S = 60
"""The OpenAI SDK gives up on a `Retry-After` above 120 s."""
_MIN_QUEUE = 16
_QUEUE_PER_SLOT = 4
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
        self.placement = TaskPlacement(self.workers, self.queue, self.router)
        self.demand = DemandNotes(self.workers, self.queue, self.placement.deferral)
        self.n_shared = 0
        """Workers that other gateways use too."""
        self._queue_size = queue_size
        self._charges = Charges(self.queue)
        self._n_assigned = 0

    def __repr__(self) -> str:
        leases = sum(worker.n_leases for worker in self.workers.values())
        return (
            f"<Dispatcher workers={len(self.workers)} tasks={self.n_tasks} "
            f"waiting={self.n_waiting} leases={leases}{' draining' if self.draining else ''}>"
        )

    @property
    def n_waiting(self) -> int:
        """Tasks in the queue."""
        return len(self.queue)

    @property
    def n_tasks(self) -> int:
        """Tasks that somebody waits for."""
        return sum(task.state is not TaskState.CANCELLED for task in self.tasks.values())

    def queue_limit(self, model: str) -> int:
        """Tasks of a model that may wait; one that a lost worker gives back may exceed it."""
        return self._queue_size or max(_MIN_QUEUE, _QUEUE_PER_SLOT * self.slots.n_slots(model))

    @property
    def models(self) -> dict[str, int]:
        """Waiting tasks of every known model."""
        return self.queue.depths()

    def deferred(self) -> dict[str, int]:
        """Count the tasks of every known model that have no slot yet, those sent ahead too."""
        depths = self.models
        for worker in self.workers.values():
            depths[worker.model] = depths.get(worker.model, 0) + worker.n_ahead
        return depths

    def tenant_of(self, task_id: int) -> str | None:
        """Return whose task it is; None if it has ended or was cancelled."""
        task = self.tasks.get(task_id)
        return None if task is None or task.state is TaskState.CANCELLED else task.spec.tenant

    # ---- requests -----------------------------------------------------------------------------

    def submit(self, spec: TaskSpec, now: float) -> list[Action]:
        """Assign a task or let it wait; raises `TaskError` if it can do neither."""
        if self.draining:
            raise shutting_down()
        if spec.model not in self.queue:
            raise TaskError(ErrorCode.NOT_FOUND, f"model '{spec.model}' not found", param="model")
        task = Task(spec, now)
        actions: list[Action] = []
        if self.queue.depth(spec.model) >= self.queue_limit(spec.model):
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
        """Fail the tasks that waited too long; end reservations whose time is over."""
        self.router.tidy()
        actions: list[Action] = []
        for task in self.queue.expired(now):
            self._end(task)
            message = f"No slot became free within {self.queue.timeout_s:g} s"
            actions.append(Fail(task.task_id, self._overloaded(task.spec.model, message)))
        for model in self.placement.deferral.released(now):
            actions += self._pump(model, now)
        return actions

    def abandon(self, model: str) -> list[Action]:
        """Fail the waiting tasks of a model that was unloaded."""
        waiting = [one for one in self.tasks.values() if one.state is TaskState.WAITING]
        actions: list[Action] = []
        for task in waiting:
            if task.spec.model == model:
                self.queue.remove(task)
                self._end(task)
                error = TaskError(ErrorCode.UNAVAILABLE, f"model '{model}' was unloaded")
                actions.append(Fail(task.task_id, error))
        return actions

    def drain(self) -> None:
        """Take nothing new; the queue is still served."""
        self.draining = True

    # ---- workers ------------------------------------------------------------------------------

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

    def worker_leaves(self, key: str) -> None:
        """Send nothing more to a worker that drains; it finishes what it has."""
        worker = self.workers[key]
        if worker.state is not WorkerState.LEAVING:
            worker.become(WorkerState.LEAVING)

    def worker_lost(self, key: str, now: float, *, died: bool = True) -> list[Action]:
        """Requeue the tasks of which no client has seen anything; fail the others."""
        worker = self.workers.pop(key)
        self.n_shared -= worker.is_shared
        self.router.lost(worker)
        actions: list[Action] = []
        for task in worker.tasks.values():
            if task.state is TaskState.CANCELLED:
                self._end(task)
                continue
            task.n_faults += died
            if task.may_move:
                self._requeue(task, now)
            else:
                self._end(task)
                actions.append(Fail(task.task_id, task.verdict()))
        actions += self._pump(worker.model, now)
        is_loading = any(one.model == worker.model for one in self.workers.values())
        if worker.model not in self.cards and not is_loading:
            self.queue.close(worker.model)  # it never was ready: nothing is known of it
        return actions

    # ---- what workers say of tasks ------------------------------------------------------------

    def find(self, key: str, lease: TaskKey) -> Task | None:
        """Find the task of an attempt if this worker has that very attempt, cancelled or not."""
        task = self.tasks.get(lease.id)
        return task if task is not None and task.is_at(key, lease.attempt) else None

    def was_cancelled(self, key: str, lease: TaskKey) -> bool:
        """Tell whether an attempt was given up and has not ended yet."""
        task = self.find(key, lease)
        return task is not None and task.state is TaskState.CANCELLED

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

    def prompt_read(self, key: str, lease: TaskKey, now: float) -> None:
        """Note that the prompt of a task is read: its first delta has come."""
        task = self.find(key, lease)
        if task is not None:
            if task.spec.takes_credit:
                self.router.read(task, now)
            task.show()

    def cached(self, key: str, message: Cached) -> None:
        """Note what a worker says of its prefix cache."""
        self.router.cached(key, message)

    def ended(self, key: str, envelope: Envelope, now: float) -> list[Action]:
        """Take the credit back and pass the result on, if somebody still waits for it."""
        task, message = self.find(key, envelope.task), envelope.payload
        if task is None:
            return []
        assert isinstance(message, Terminal)
        worker = self.workers[key]
        worker.release(task)
        if task.spec.takes_credit:
            self.router.ended(task, message, now)
        return self._conclude(task, envelope, now) + self._pump(worker.model, now)

    def _conclude(self, task: Task, envelope: Envelope, now: float) -> list[Action]:
        """End a task with its result, or let another worker try what this one has failed."""
        message = envelope.payload
        is_wanted = task.state is not TaskState.CANCELLED
        is_fault = isinstance(message, Failed) and message.code in _WORKER_FAULTS
        if is_wanted and is_fault:
            task.n_faults += 1
            task.tried.add(task.worker)
            if task.may_move and self.placement.has_other(task, now):
                self._requeue(task, now)
                return []
        self._charges.ended(task, message)
        self._end(task)
        if not is_wanted:
            return []
        if isinstance(message, Failed) and is_fault and task.n_faults >= MAX_FAULTS:
            return [Fail(task.task_id, task.verdict(message.message))]
        return [Deliver(envelope)]

    # ---- choosing -----------------------------------------------------------------------------

    def _make_room(self, task: Task) -> list[Action]:
        """Take a place in a full queue from the tenant with most in it; raises `TaskError`."""
        last = self.queue.displaced_by(task)
        if last is None:
            raise self._overloaded(task.spec.model, "The queue is full")
        self.queue.remove(last)
        self._end(last)
        message = "The queue is full, and others have fewer requests in it"
        return [Fail(last.task_id, self._overloaded(task.spec.model, message))]

    def _pump(self, model: str, now: float) -> list[Action]:
        """Assign waiting tasks of a model as long as there is a worker to take one."""
        actions: list[Action] = []
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
        self._charges.assigned(task)
        return Assign(worker.key, task.task_id, task.attempt, task.slot)

    def _requeue(self, task: Task, now: float) -> None:
        """Put a task back at its place in the queue, to begin anew."""
        self._charges.refund(task)
        task.requeue(now)
        self.queue.push(task)

    def _end(self, task: Task) -> None:
        """Forget a task that no worker and no queue has any more."""
        task.end()
        del self.tasks[task.task_id]
        self.placement.deferral.forget(task)

    def _overloaded(self, model: str, message: str) -> TaskError:
        """Build the refusal with the time in which a slot for one more should become free."""
        slots = sum(worker.n_slots for worker in self.workers.values() if worker.model == model)
        n_before = self.queue.depth(model) + 1
        wait_s = math.ceil(n_before * self.router.service_s(model) / max(1, slots))
        retry_after_s = min(max(1, wait_s), _MAX_RETRY_AFTER_S)
        return TaskError(ErrorCode.OVERLOADED, message, detail={"retry_after_s": retry_after_s})
