"""Assigns waiting tasks to workers, and moves tasks away from bad or leaving workers. Pure."""

from gateway.pool.dispatch.actions import Action, Assign, CancelTask, ProceedTask
from gateway.pool.dispatch.task_book import TaskBook
from gateway.pool.recovery.outliers import OutlierDetection
from gateway.pool.recovery.quarantine import Quarantine
from gateway.pool.routing.placement import TaskPlacement
from gateway.pool.routing.policy import RouteChoice, RoutingPolicy
from gateway.pool.tasks.task import MoveCause, Task, TaskState
from gateway.pool.workers.worker import Worker


class Assignment:
    """Assigns tasks; the only place where a credit is taken."""

    def __init__(
        self,
        book: TaskBook,
        placement: TaskPlacement,
        routing: RoutingPolicy,
        outliers: OutlierDetection,
        quarantine: Quarantine,
    ) -> None:
        self.leaving: dict[str, Worker] = {}
        """Workers that drain, by their keys: their tasks move as soon as others have room."""
        self._book = book
        self._placement = placement
        self._routing = routing
        self._outliers = outliers
        self._quarantine = quarantine
        self._n_assigned = 0

    def __repr__(self) -> str:
        return f"<Assignment assigned={self._n_assigned} leaving={len(self.leaving)}>"

    def assign_waiting(self, model: str, now: float) -> list[Action]:
        """Assign waiting tasks of a model as long as there is a worker to take one.

        Those that have waited in a worker for long go before them where another one can take them.
        """
        actions = self.proceed(now)
        for worker in self.leaving.values():
            if worker.model == model and worker.tasks:
                actions += self.move(worker, MoveCause.DRAINED, now)
        while True:
            found = self._placement.next(model, now) if self._book.queue else None
            overdue = self._overdue(model, now, needs_free=found is None)
            if overdue is not None and (found is None or _goes_first(overdue[0], found[0])):
                actions += self._move(*overdue, MoveCause.OVERDUE, now)
            elif found is not None:
                self._book.queue.serve(found[0])
                actions.append(self._assign(*found, now))
            else:
                return actions

    def _overdue(
        self, model: str, now: float, *, needs_free: bool
    ) -> tuple[Task, RouteChoice] | None:
        """Find the oldest task that has waited in a worker for long, and another worker for it.

        Without `needs_free` that one need not have a free slot: a waiting task would go there.
        """
        order = self._routing.order
        workers = order.workers_of(model, now)
        if not (workers.has_free if needs_free else workers.able):
            return None
        tasks = [
            task
            for key in workers.keys(workers.crowded)
            for task in order[key].waiting
            if _may_move(task) and not self._placement.deferral.stays(task, now)
        ]
        oldest: dict[str | None, Task] = {}
        for task in sorted(tasks, key=lambda task: task.task_id):
            # What has begun may have no place where others do: only some have its model.
            oldest.setdefault(task.model_fingerprint if task.answer.has_started else None, task)
        for task in oldest.values():
            if (choice := self._elsewhere(task, now, needs_free=needs_free)) is not None:
                return task, choice
        return None

    def proceed(self, now: float) -> list[Action]:
        """Return the orders to resume the paused answers whose turn it is."""
        tasks = self._quarantine.proceed(now)
        return [ProceedTask(task.worker, task.task_id, task.attempt) for task in tasks]

    def move(self, worker: Worker, cause: MoveCause, now: float) -> list[Action]:
        """Move the tasks of a worker to others, as many as have free slots.

        Answers that have begun go on only where the model is the same.
        """
        actions: list[Action] = []
        can_continue = True
        for task in list(worker.tasks.values()):
            has_begun = task.answer.has_started
            if not _may_move(task) or (has_begun and not can_continue):
                continue
            choice = self._elsewhere(task, now, needs_free=True)
            if choice is not None:
                actions += self._move(task, choice, cause, now)
            elif has_begun:
                can_continue = False
            else:
                break
        return actions

    def _elsewhere(self, task: Task, now: float, *, needs_free: bool) -> RouteChoice | None:
        """Find another worker, with a free slot or at least a credit, than the one with a task."""
        key, failed = task.worker, task.tried
        task.tried = failed | {key}
        choice = self._placement.find(task, now)
        task.tried = failed
        is_other = choice is not None and choice.worker.key != key
        if choice is not None and is_other and (choice.worker.n_free or not needs_free):
            return choice
        return None

    def _move(self, task: Task, choice: RouteChoice, cause: MoveCause, now: float) -> list[Action]:
        """Give a task to another worker; the credit comes back when the first has ended it."""
        worker = self._routing.order[task.worker]
        cancel = CancelTask(worker.key, task.task_id, task.attempt)
        self._routing.moved(task)
        worker.abandon(task)
        self._book.put_back(task, cause, now)
        self._book.queue.serve(task)
        return [cancel, self._assign(task, choice, now)]

    def _assign(self, task: Task, choice: RouteChoice, now: float) -> Assign:
        """Take the credit of a task that has just left the queue."""
        worker = choice.worker
        self._placement.deferral.forget(task)
        self._placement.shares.assigned(task, now)
        task.assign(worker.key, worker.name, choice.reason, now, worker.model_fingerprint)
        choice.explain(task.attempts[-1])
        self._n_assigned += 1
        worker.take(task, self._n_assigned)
        if task.spec.takes_credit:
            self._routing.assigned(task, choice)
        self._outliers.assigned(task, 0.0 if task.is_paused else choice.predicted_s)
        self._quarantine.assigned(task)
        self._book.charges.assigned(task)
        return Assign(worker.key, task.task_id, task.attempt, task.slot)


def _may_move(task: Task) -> bool:
    """Return whether a living worker's task may go to another one."""
    if task.state is TaskState.CANCELLED or task.is_on_trial or not task.may_move:
        return False
    return task.spec.takes_credit and not task.spec.worker


def _goes_first(overdue: Task, waiting: Task) -> bool:
    """Return whether a task whose turn has been before goes before one of the queue.

    It does unless the other's class is higher, or its place among the tasks of the same tenant.
    """
    one, other = overdue.spec, waiting.spec
    if one.tenant != other.tenant:
        return one.limits.priority <= other.limits.priority
    return (one.priority, overdue.task_id) < (other.priority, waiting.task_id)
