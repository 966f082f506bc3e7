"""Which task runs where and what becomes of it: every decision of the pool, and no I/O.

Pure and synchronous. Time is passed in, and each call returns the actions that the pool performs.
A credit is taken in the line that assigns; the terminal message of that very attempt returns it,
also long after the task was given up.
"""

import math
from collections.abc import Collection

from gateway.pool.actions import Action, Assign, CancelTask, Deliver, Fail, TaskSpec
from gateway.pool.routing.deferral import DeferralPolicy
from gateway.pool.routing.policy import RouteChoice, RoutingPolicy
from gateway.pool.task import MAX_FAULTS, PoolTask, TaskState
from gateway.pool.task_queue import TaskQueue
from gateway.pool.tenants.charges import Charges
from gateway.pool.workers import SlotMap, Worker, WorkerState, least_asked
from protocol.errors import ErrorCode, TaskError
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Delta, Evicted, Failed, Started, TaskMessage, Terminal

_MAX_RETRY_AFTER_S = 60
"""The OpenAI SDK gives up on a `Retry-After` above 120 s."""
_QUEUE_AT_LEAST = 16
_QUEUE_PER_SLOT = 4
_FAULTS = (ErrorCode.INTERNAL, ErrorCode.UNAVAILABLE)
"""What a worker says of itself rather than of the task: another may well do better."""


class Dispatcher:
    """Workers, credits and the queue of the whole pool."""

    def __init__(
        self,
        *,
        queue_size: int = 0,
        queue_timeout_s: float = 60.0,
        router: RoutingPolicy | None = None,
    ) -> None:
        self.workers: dict[str, Worker] = {}
        self.router = router or RoutingPolicy()
        self.slots = SlotMap()
        self.cards: dict[str, ModelCard] = {}
        """The newest card of every model that is or was ready."""
        self.draining = False
        self._queue_size = queue_size
        self._backlog = TaskQueue(timeout_s=queue_timeout_s)
        self._charges = Charges(self._backlog)
        self._tasks: dict[int, PoolTask] = {}
        self._patience = DeferralPolicy(self.router, timeout_s=queue_timeout_s)
        self._n_assigned = 0

    def __repr__(self) -> str:
        leases = sum(len(worker.leases) for worker in self.workers.values())
        return (
            f"<Dispatcher workers={len(self.workers)} tasks={len(self._tasks)} "
            f"waiting={self.n_waiting} leases={leases}{' draining' if self.draining else ''}>"
        )

    @property
    def n_waiting(self) -> int:
        """Tasks in the queue."""
        return len(self._backlog)

    @property
    def n_tasks(self) -> int:
        """Tasks that have not ended."""
        return len(self._tasks)

    def queue_limit(self, model: str) -> int:
        """Tasks of a model that may wait; one that a lost worker gives back is let in beyond it."""
        return self._queue_size or max(_QUEUE_AT_LEAST, _QUEUE_PER_SLOT * self.slots.n_slots(model))

    @property
    def models(self) -> dict[str, int]:
        """Waiting tasks of every known model."""
        return self._backlog.depths()

    def deferred(self) -> dict[str, int]:
        """Count the tasks of every known model that have no slot yet, those sent ahead too."""
        depths = self.models
        for worker in self.workers.values():
            depths[worker.model] = depths.get(worker.model, 0) + worker.n_ahead
        return depths

    def kept(self, task_id: int) -> PoolTask | None:
        """Return a task that waits for one worker though others are free."""
        return self._patience.kept(task_id)

    def submit(self, spec: TaskSpec, now: float) -> list[Action]:
        """Assign a task or let it wait; raises `TaskError` if it can do neither."""
        if self.draining:
            raise TaskError(
                ErrorCode.UNAVAILABLE, "The server is shutting down", detail={"retry_after_s": 1}
            )
        if spec.model not in self._backlog:
            raise TaskError(ErrorCode.NOT_FOUND, f"model '{spec.model}' not found", param="model")
        is_full = self._backlog.depth(spec.model) >= self.queue_limit(spec.model)
        if is_full and self._place(spec, now) is not None:
            actions, is_patient = [], False  # it goes at once, or not at all
        else:
            actions, is_patient = self._make_room(spec) if is_full else [], True
        self._tasks[spec.task_id] = PoolTask(spec, now, is_patient=is_patient)
        self._backlog.push(spec, now)
        return actions + self._pump(spec.model, now)

    def _make_room(self, spec: TaskSpec) -> list[Action]:
        """Take a place in a full queue from who holds most of it; raises `TaskError`."""
        last = self._backlog.displaced_by(spec)
        if last is None:
            raise self._overloaded(spec.model, "The queue is full")
        self._backlog.remove(last)
        self._forget(self._tasks[last.task_id])
        message = "The queue is full, and others have fewer requests in it"
        return [Fail(last.task_id, self._overloaded(spec.model, message))]

    def cancel(self, task_id: int) -> list[Action]:
        """Give a task up; its terminal message returns its credit and says what it has cost."""
        task = self._tasks.get(task_id)
        if task is None:
            return []
        if task.state is TaskState.WAITING:
            self._backlog.remove(task.spec)
        self._forget(task)
        if not task.worker:
            return []
        self.workers[task.worker].cancelled[task_id, task.attempt] = task
        return [CancelTask(task.worker, task_id, task.attempt)]

    def tenant_of(self, task_id: int) -> str | None:
        """Return whose task it is; None if it has ended."""
        task = self._tasks.get(task_id)
        return task.spec.tenant if task is not None else None

    def was_cancelled(self, key: str, message: TaskMessage) -> bool:
        """Tell whether a message belongs to an attempt that was given up and has not ended yet."""
        return (message.task_id, message.attempt) in self.workers[key].cancelled

    def awaits(self, key: str, message: Terminal) -> bool:
        """Tell whether an end is news: of a live task, or of one that was just given up."""
        return self._live(key, message) is not None or self.was_cancelled(key, message)

    def worker_hello(self, key: str, name: str, model: str) -> None:
        """Note a worker that loads its model: tasks for that model may wait from now on."""
        self.workers[key] = Worker(key, name, model)
        self._backlog.open(model)

    def worker_ready(self, key: str, card: ModelCard, now: float) -> list[Action]:
        """Open the slots of a worker."""
        worker = self.workers[key]
        if worker.state is not WorkerState.LOADING:
            return []
        worker.turn(WorkerState.READY)
        worker.card, worker.model = card, card.name
        self._backlog.open(card.name)
        self.cards[card.name] = card
        self.slots.reserve(worker.name, card)
        self.router.opened(worker)
        return self._pump(card.name, now)

    def worker_sleeps(self, key: str, is_sleeping: bool) -> None:
        """Note whether a worker has its model loaded."""
        worker = self.workers[key]
        if is_sleeping and not worker.is_sleeping:
            self.router.emptied(key)
        worker.is_sleeping = is_sleeping

    def worker_leaves(self, key: str) -> None:
        """Send nothing more to a worker that drains; it finishes what it has."""
        worker = self.workers[key]
        if worker.state is not WorkerState.LEAVING:
            worker.turn(WorkerState.LEAVING)

    def worker_lost(self, key: str, now: float, *, died: bool = True) -> list[Action]:
        """Move what its client has seen nothing of to the front of the queue; the rest fails."""
        worker = self.workers.pop(key)
        self.router.lost(key)
        actions: list[Action] = []
        for task in [self._tasks[task_id] for task_id in worker.tasks]:
            task.n_faults += died
            if task.may_move:
                self._requeue(task, now)
            else:
                self._forget(task)
                actions.append(Fail(task.spec.task_id, task.verdict()))
        actions += self._pump(worker.model, now)
        is_loading = any(one.model == worker.model for one in self.workers.values())
        if worker.model not in self.cards and not is_loading:
            self._backlog.close(worker.model)  # it never was ready: nothing is known of it
        return actions

    def started(self, key: str, message: Started, now: float) -> bool:
        """Note the slot of a task and what its prompt costs; false if nobody wants it any more."""
        worker = self.workers[key]
        self.router.started(key, message, now)
        lease = (message.task_id, message.attempt)
        if worker.leases.get(lease) == -1:  # a slot once known stays: its place is counted on
            worker.leases[lease] = message.slot
        task = self._live(key, message) or worker.cancelled.get(lease)
        if task is None or task.state is not TaskState.ASSIGNED:
            return False
        task.turn(TaskState.STARTED, now)
        self._charges.started(task, message)
        return lease not in worker.cancelled

    def prompt_read(self, key: str, message: Delta, now: float) -> None:
        """Note that the prompt of a task is read: its first delta has come."""
        self.router.read(key, (message.task_id, message.attempt), now)
        self.shown(message.task_id)

    def shown(self, task_id: int) -> None:
        """Note that the client of a task may have seen a part of its answer."""
        task = self._tasks.get(task_id)
        if task is not None:
            task.is_shown = not task.spec.is_whole

    def evicted(self, key: str, message: Evicted) -> None:
        """Note that the worker's cache has lost what these tasks left there."""
        self.router.evicted(key, message.tasks)

    def ended(self, key: str, message: Terminal, now: float) -> list[Action]:
        """Take the credit back and hand the result on, if somebody still waits for it."""
        worker, lease = self.workers[key], (message.task_id, message.attempt)
        worker.leases.pop(lease, None)
        worker.asides.discard(lease)
        self.router.ended(key, message, now)
        actions: list[Action | None] = []
        task = self._live(key, message)
        if task is not None:
            actions.append(self._conclude(task, message, now))
        elif (gone := worker.cancelled.pop(lease, None)) is not None:
            self._charges.ended(gone, message)
        return [one for one in actions if one is not None] + self._pump(worker.model, now)

    def _conclude(self, task: PoolTask, message: Terminal, now: float) -> Action | None:
        """Hand a result on, or let another worker try what this one has failed."""
        if isinstance(message, Failed) and message.code in _FAULTS:
            task.n_faults += 1
            task.tried.add(task.worker)
            if task.may_move and self._able(task.spec, task.tried, is_ready=True):
                self.workers[task.worker].tasks.pop(task.spec.task_id)
                self._requeue(task, now)
                return None
            if task.n_faults >= MAX_FAULTS:
                self._forget(task)
                return Fail(task.spec.task_id, task.verdict(message.message))
        self._charges.ended(task, message)
        self._forget(task)
        return Deliver(message)

    def expire(self, now: float) -> list[Action]:
        """Fail the tasks that waited too long; let those go that were kept for a busy worker."""
        actions: list[Action] = []
        for spec in self._backlog.expired(now):
            self._forget(self._tasks[spec.task_id])
            message = f"No slot became free within {self._backlog.timeout_s:g} s"
            actions.append(Fail(spec.task_id, self._overloaded(spec.model, message)))
        for model in self._patience.released(now):
            actions += self._pump(model, now)
        return actions

    def abandon(self, model: str) -> list[Action]:
        """Fail what waits for a model that was unloaded."""
        tasks = [task for task in self._tasks.values() if task.spec.model == model]
        actions: list[Action] = []
        for task in tasks:
            if task.state is TaskState.WAITING:
                self._backlog.remove(task.spec)
                self._forget(task)
                error = TaskError(ErrorCode.UNAVAILABLE, f"model '{model}' was unloaded")
                actions.append(Fail(task.spec.task_id, error))
        return actions

    def drain(self) -> None:
        """Take nothing new; the queue is still served."""
        self.draining = True

    def _place(self, spec: TaskSpec, now: float) -> RouteChoice | None:
        """Find the worker that should take the task if it is to go now."""
        task = self._tasks.get(spec.task_id)
        able = self._able(spec, task.tried if task is not None else ())
        if not spec.takes_credit:
            # What the gateway itself asks of one worker is never kept waiting.
            asked = least_asked(one for one in able if spec.worker or one.takes_aside)
            return RouteChoice(asked) if asked is not None else None
        if spec.slot >= 0:
            owner = next((worker for worker in able if worker.can_run_in(spec.slot)), None)
            return self.router.pinned(spec, owner, now) if owner is not None else None
        return self.router.choose(spec, able, now)

    def _able(
        self, spec: TaskSpec, tried: Collection[str], *, is_ready: bool = False
    ) -> list[Worker]:
        """List the workers that may run a task; those that failed it only if they are all."""
        found = [
            worker
            for worker in self.workers.values()
            if worker.model == spec.model and spec.worker in ("", worker.name)
        ]
        if not tried and not is_ready:
            return found
        others = [worker for worker in found if worker.is_ready and worker.key not in tried]
        return others or ([] if is_ready else found)

    def _admit(self, spec: TaskSpec, now: float) -> RouteChoice | None:
        """Find the worker for a task from the queue; none if it has to wait, or had better."""
        choice = self._place(spec, now)
        if choice is None:
            return None
        task = self._tasks[spec.task_id]
        return None if self._patience.keeps(task, choice, self.workers, now) else choice

    def _pump(self, model: str, now: float) -> list[Action]:
        """Assign waiting tasks of a model as long as there is anybody to take one."""
        actions: list[Action] = []
        while self.n_waiting:
            taken = self._next(model, now)
            if taken is None:
                break
            spec, choice = taken
            actions.append(self._assign(self._tasks[spec.task_id], choice, now))
        return actions

    def _next(self, model: str, now: float) -> tuple[TaskSpec, RouteChoice] | None:
        """Take a task from the queue that can go now."""
        able = [w for w in self.workers.values() if w.model == model and w.has_credit]
        has_rivals = self.n_waiting > 1

        def defers(spec: TaskSpec) -> bool:
            task = self._tasks[spec.task_id]
            return has_rivals and self._patience.defers(task, able, self.workers.values(), now)

        return self._backlog.pop(
            model,
            has_credit=bool(able),
            place=lambda spec: self._admit(spec, now),
            defers=defers,
        )

    def _assign(self, task: PoolTask, choice: RouteChoice, now: float) -> Assign:
        """Take the credit; the task has just been taken from the queue."""
        spec, worker = task.spec, choice.worker
        self._patience.forget(spec.task_id)
        if spec.takes_credit:
            worker.leases[spec.task_id, task.attempt] = spec.slot
            self.router.assigned(choice, spec, task.attempt)
        elif not spec.worker:
            worker.asides.add((spec.task_id, task.attempt))
        worker.tasks[spec.task_id] = None
        self._n_assigned += 1
        worker.last_used = self._n_assigned
        task.turn(TaskState.ASSIGNED, now)
        task.worker = worker.key
        self._charges.assigned(task)
        return Assign(
            worker.key, spec.task_id, task.attempt, spec.slot, choice.branch, choice.n_cached
        )

    def _requeue(self, task: PoolTask, now: float) -> None:
        """Put a task back to its place at the front, as if nothing had happened."""
        self._charges.refund(task)
        task.turn(TaskState.WAITING, now)
        task.attempt += 1
        task.worker = ""
        self._backlog.push(task.spec, now)

    def _forget(self, task: PoolTask) -> None:
        del self._tasks[task.spec.task_id]
        self._patience.forget(task.spec.task_id)
        worker = self.workers.get(task.worker)
        if worker is not None:
            worker.tasks.pop(task.spec.task_id, None)

    def _live(self, key: str, message: Started | Terminal) -> PoolTask | None:
        task = self._tasks.get(message.task_id)
        if task is None or task.worker != key or task.attempt != message.attempt:
            return None
        return task

    def _overloaded(self, model: str, message: str) -> TaskError:
        """Build the refusal with the time in which a slot for one more should become free."""
        slots = sum(worker.n_slots for worker in self.workers.values() if worker.model == model)
        n_before = self._backlog.depth(model) + 1
        wait_s = math.ceil(n_before * self.router.service_s(model) / max(1, slots))
        retry_after_s = min(max(1, wait_s), _MAX_RETRY_AFTER_S)
        return TaskError(ErrorCode.OVERLOADED, message, detail={"retry_after_s": retry_after_s})
