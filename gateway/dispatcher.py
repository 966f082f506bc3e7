"""Which task runs where and what becomes of it: every decision of the pool, and no I/O.

Pure and synchronous. Time is passed in, and each call returns the actions that the pool performs.
A credit is taken in the line that assigns; the terminal message of that very attempt returns it,
also long after the task was given up.
"""

import math
from collections.abc import Callable, Iterable

from gateway.actions import Action, Assign, CancelTask, Deliver, Fail, Submission
from gateway.backlog import Backlog
from gateway.roster import SlotMap, Worker, WorkerState, least_asked, most_free
from gateway.task import Task, TaskState
from protocol.errors import ErrorCode, TaskError
from protocol.facts import ModelCard
from protocol.messages import Done, Started, Terminal

_MAX_RETRY_AFTER_S = 60
"""The OpenAI SDK gives up on a `Retry-After` above 120 s."""
_SERVICE_WEIGHT = 0.15
"""Of the newest task in the mean duration: the last dozen or so count."""


class Dispatcher:
    """Workers, credits and the queue of the whole pool."""

    def __init__(
        self,
        *,
        queue_size: int = 0,
        queue_timeout_s: float = 60.0,
        choose: Callable[[Iterable[Worker]], Worker | None] = most_free,
    ) -> None:
        self.workers: dict[str, Worker] = {}
        self.slots = SlotMap()
        self.cards: dict[str, ModelCard] = {}
        """The newest card of every model that is or was ready."""
        self.draining = False
        self._queue_size = queue_size
        self._choose = choose
        self._backlog = Backlog(timeout_s=queue_timeout_s)
        self._tasks: dict[int, Task] = {}
        self._n_assigned = 0
        self._service_s = 1.0

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

    @property
    def queue_limit(self) -> int:
        """Tasks that may wait; one that comes back from a lost worker is let in beyond it."""
        return self._queue_size or max(16, 4 * self.slots.n_slots)

    @property
    def models(self) -> dict[str, int]:
        """Waiting tasks of every known model."""
        return self._backlog.depths()

    def submit(self, spec: Submission, now: float) -> list[Action]:
        """Assign a task or let it wait; raises `TaskError` if it can do neither."""
        if self.draining:
            raise TaskError(
                ErrorCode.UNAVAILABLE, "The server is shutting down", detail={"retry_after_s": 1}
            )
        if spec.model not in self._backlog:
            raise TaskError(ErrorCode.NOT_FOUND, f"model '{spec.model}' not found", param="model")
        if self.n_waiting >= self.queue_limit and self._place(spec) is None:
            raise self._overloaded("The queue is full")
        self._tasks[spec.task_id] = Task(spec, now)
        self._backlog.push(spec, now)
        return self._pump(spec.model, now)

    def cancel(self, task_id: int) -> list[Action]:
        """Forget a task; its credit comes back with its terminal message."""
        task = self._tasks.get(task_id)
        if task is None:
            return []
        if task.state is TaskState.WAITING:
            self._backlog.remove(task.spec)
        self._forget(task)
        if not task.worker:
            return []
        return [CancelTask(task.worker, task_id, task.attempt)]

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
        return self._pump(card.name, now)

    def worker_leaves(self, key: str) -> None:
        """Send nothing more to a worker that drains; it finishes what it has."""
        worker = self.workers[key]
        if worker.state is not WorkerState.LEAVING:
            worker.turn(WorkerState.LEAVING)

    def worker_lost(self, key: str, now: float, *, died: bool = True) -> list[Action]:
        """Move what has not started to the front of the queue; what has started fails."""
        worker = self.workers.pop(key)
        actions: list[Action] = []
        for task in [self._tasks[task_id] for task_id in worker.tasks]:
            task.n_deaths += died
            error = task.verdict()
            if error is None:
                self._requeue(task, now)
            else:
                self._forget(task)
                actions.append(Fail(task.spec.task_id, error))
        return actions + self._pump(worker.model, now)

    def started(self, key: str, message: Started, now: float) -> bool:
        """Note the slot of a task and what its prompt costs; false if nobody wants it any more."""
        worker = self.workers[key]
        lease = (message.task_id, message.attempt)
        if worker.leases.get(lease) == -1:  # a slot once known stays: its place is counted on
            worker.leases[lease] = message.slot
        task = self._live(key, message)
        if task is None or task.state is not TaskState.ASSIGNED:
            return False
        task.turn(TaskState.STARTED, now)
        self._charge(task, message.n_prompt - task.charged)
        return True

    def ended(self, key: str, message: Terminal, now: float) -> list[Action]:
        """Take the credit back and hand the result on, if somebody still waits for it."""
        worker = self.workers[key]
        worker.leases.pop((message.task_id, message.attempt), None)
        task = self._live(key, message)
        actions: list[Action] = []
        if task is not None:
            self._settle(task, message, now)
            actions.append(Deliver(message))
        return actions + self._pump(worker.model, now)

    def expire(self, now: float) -> list[Action]:
        """Fail the tasks that waited too long."""
        actions: list[Action] = []
        for spec in self._backlog.expired(now):
            self._forget(self._tasks[spec.task_id])
            error = self._overloaded(f"No slot became free within {self._backlog.timeout_s:g} s")
            actions.append(Fail(spec.task_id, error))
        return actions

    def drain(self) -> None:
        """Take nothing new; the queue is still served."""
        self.draining = True

    def _place(self, spec: Submission) -> Worker | None:
        """Find the worker that could take the task now."""
        able = [worker for worker in self.workers.values() if worker.model == spec.model]
        if spec.worker:
            able = [worker for worker in able if worker.name == spec.worker]
        if not spec.takes_credit:
            return least_asked(able)
        if spec.slot >= 0:
            return next((worker for worker in able if worker.can_run_in(spec.slot)), None)
        return self._choose(able)

    def _pump(self, model: str, now: float) -> list[Action]:
        """Assign waiting tasks of a model as long as there is anybody to take one."""
        actions: list[Action] = []
        while self.n_waiting:
            has_credit = any(w.has_credit for w in self.workers.values() if w.model == model)
            spec = self._backlog.pop(
                model, has_credit=has_credit, fits=lambda one: self._place(one) is not None
            )
            if spec is None:
                break
            actions.append(self._assign(self._tasks[spec.task_id], now))
        return actions

    def _assign(self, task: Task, now: float) -> Assign:
        """Take the credit; the task has just been taken from the queue."""
        spec = task.spec
        worker = self._place(spec)
        assert worker is not None, f"nobody takes {task!r}"
        if spec.takes_credit:
            worker.leases[spec.task_id, task.attempt] = spec.slot
        worker.tasks[spec.task_id] = None
        self._n_assigned += 1
        worker.last_used = self._n_assigned
        task.turn(TaskState.ASSIGNED, now)
        task.worker = worker.key
        self._charge(task, spec.n_tokens)
        return Assign(worker.key, spec.task_id, task.attempt, spec.slot)

    def _requeue(self, task: Task, now: float) -> None:
        """Put a task back to its place at the front, as if nothing had happened."""
        self._charge(task, -task.charged)
        task.turn(TaskState.WAITING, now)
        task.attempt += 1
        task.worker = ""
        self._backlog.push(task.spec, now)

    def _settle(self, task: Task, message: Terminal, now: float) -> None:
        if isinstance(message, Done):
            self._charge(task, message.n_predicted)
            self._service_s += _SERVICE_WEIGHT * (now - task.since - self._service_s)
        self._forget(task)

    def _forget(self, task: Task) -> None:
        del self._tasks[task.spec.task_id]
        worker = self.workers.get(task.worker)
        if worker is not None:
            worker.tasks.pop(task.spec.task_id, None)

    def _charge(self, task: Task, tokens: int) -> None:
        task.charged += tokens
        self._backlog.charge(task.spec, tokens)

    def _live(self, key: str, message: Started | Terminal) -> Task | None:
        task = self._tasks.get(message.task_id)
        if task is None or task.worker != key or task.attempt != message.attempt:
            return None
        return task

    def _overloaded(self, message: str) -> TaskError:
        """Build the refusal with the time in which a slot for one more should become free."""
        slots = sum(worker.n_slots for worker in self.workers.values())
        wait_s = math.ceil((self.n_waiting + 1) * self._service_s / max(1, slots))
        retry_after_s = min(max(1, wait_s), _MAX_RETRY_AFTER_S)
        return TaskError(ErrorCode.OVERLOADED, message, detail={"retry_after_s": retry_after_s})
