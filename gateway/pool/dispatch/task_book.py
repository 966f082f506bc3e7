"""The records of all tasks that have not ended. Pure; belongs to the dispatcher."""

from collections.abc import Callable, Iterable

from gateway.pool.dispatch.actions import Action, CancelTask, Fail
from gateway.pool.recovery.quarantine import refusal
from gateway.pool.routing.placement import TaskPlacement
from gateway.pool.tasks.task import MoveCause, Task, TaskState
from gateway.pool.tenants.allowances import Allowances
from gateway.pool.tenants.charges import Charges
from gateway.pool.tenants.task_queue import TaskQueue
from gateway.pool.workers.worker import Worker
from protocol.errors import TaskError
from protocol.wire.messages import TaskKey, Terminal


class TaskBook:
    """Takes tasks in, puts them back into the queue, and ends them."""

    def __init__(
        self,
        queue: TaskQueue,
        charges: Charges,
        placement: TaskPlacement,
        allowances: Allowances,
        on_settled: Callable[[Task], None],
    ) -> None:
        """`on_settled` is called once for each task: it has ended, and so have all attempts."""
        self.tasks: dict[int, Task] = {}
        """Every task that has not ended, those that were cancelled included."""
        self.queue = queue
        self.charges = charges
        self._placement = placement
        self._allowances = allowances
        self._on_settled = on_settled

    def __repr__(self) -> str:
        return f"<TaskBook tasks={len(self.tasks)} waiting={len(self.queue)}>"

    def find(self, key: str, task_key: TaskKey) -> Task | None:
        """Find the task of an attempt if this worker has that very attempt, cancelled or not."""
        task = self.tasks.get(task_key.id)
        return task if task is not None and task.is_at(key, task_key.attempt) else None

    def waiting(self) -> list[Task]:
        """List the tasks that wait, oldest first."""
        return [task for task in self.tasks.values() if task.state is TaskState.WAITING]

    def add(self, task: Task) -> None:
        """Take a new task into the queue."""
        self.tasks[task.task_id] = task
        self.queue.push(task)

    def put_back(self, task: Task, cause: MoveCause, now: float) -> None:
        """Put a task back at its place in the queue: it continues, or starts again."""
        self.charges.refund(task)
        self._placement.shares.returned(task)
        task.requeue(cause, now)
        self.queue.push(task)

    def attempt_ended(self, task: Task, number: int, end: Terminal | None, now: float) -> None:
        """Note that a worker has ended an attempt, or with None is lost with it."""
        task.attempt_ended(number, end, now)
        if task.is_settled:
            self._on_settled(task)

    def turn_away(self, task: Task, error: TaskError) -> Fail:
        """End a task that waits."""
        self.queue.remove(task)
        self.end(task)
        return Fail(task.task_id, error)

    def refuse_late(
        self, workers: Iterable[Worker], error: Callable[[Task], TaskError], now: float
    ) -> list[Action]:
        """End the tasks that have waited too long, in the queue or in a worker."""
        actions: list[Action] = []
        for task in self.queue.expired(now):
            self.end(task)
            actions.append(Fail(task.task_id, error(task)))
        for worker in workers:
            for task in worker.waiting:
                if now - task.waits_since >= self.queue.timeout_s:
                    actions += self._give_up(task, error(task), now)
        return actions

    def _give_up(self, task: Task, error: TaskError, now: float) -> list[Action]:
        """Fail a task that a worker has; its end there returns the credit."""
        task.cancel(now)
        cancel = CancelTask(task.worker, task.task_id, task.attempt)
        return [cancel, Fail(task.task_id, error)]

    def refuse_suspects(self, now: float) -> list[Action]:
        """End the tasks whose request is in quarantine, unless they run already."""
        actions: list[Action] = []
        for task in list(self.tasks.values()):
            if task.suspect is None or not task.suspect.refused_until:
                continue
            error = refusal(task.suspect)
            if task.state is TaskState.WAITING:
                actions.append(self.turn_away(task, error))
            elif task.is_paused and task.state is not TaskState.CANCELLED:
                actions += self._give_up(task, error, now)
        return actions

    def end(self, task: Task) -> None:
        """Forget a task that no worker and no queue has any more."""
        task.end()
        self.charges.settle(task)
        del self.tasks[task.task_id]
        self._allowances.settle(task.spec.tenant, task.task_id, self.charges.total(task))
        self.queue.ended(task)
        self._placement.shares.returned(task)
        self._placement.deferral.forget(task)
        if task.is_settled:
            self._on_settled(task)
