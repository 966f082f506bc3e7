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
        """Assign waiting tasks of a model as long as there is a worker to take one."""
        actions = self.proceed(now)
        for worker in self.leaving.values():
            if worker.model == model and worker.tasks:
                actions += self.move(worker, MoveCause.DRAINED, now)
        while self._book.queue and (found := self._placement.next(model, now)) is not None:
            self._book.queue.serve(found[0])
            actions.append(self._assign(*found, now))
        return actions

    def proceed(self, now: float) -> list[Action]:
        """Return the orders to resume the paused answers whose turn it is."""
        tasks = self._quarantine.proceed(now)
        return [ProceedTask(task.worker, task.task_id, task.attempt) for task in tasks]

    def move(self, worker: Worker, cause: MoveCause, now: float) -> list[Action]:
        """Move the tasks of a worker to others, as many as have free slots."""
        key = worker.key
        actions: list[Action] = []
        for task in list(worker.tasks.values()):
            may_move = task.spec.takes_credit and not task.spec.worker and task.may_move
            if task.state is TaskState.CANCELLED or not may_move or task.is_on_trial:
                continue
            task.tried.add(key)
            choice = self._placement.find(task, now)
            if choice is None or choice.worker is worker or not choice.worker.n_free:
                task.tried.discard(key)
                break
            actions.append(CancelTask(key, task.task_id, task.attempt))
            self._routing.moved(task)
            worker.abandon(task)
            self._book.put_back(task, cause, now)
            self._book.queue.serve(task)
            actions.append(self._assign(task, choice, now))
        return actions

    def _assign(self, task: Task, choice: RouteChoice, now: float) -> Assign:
        """Take the credit of a task that has just left the queue."""
        worker = choice.worker
        self._placement.deferral.forget(task)
        self._placement.shares.assigned(task, now)
        task.assign(worker.key, worker.name, choice.reason, now)
        choice.explain(task.attempts[-1])
        self._n_assigned += 1
        worker.take(task, self._n_assigned)
        if task.spec.takes_credit:
            self._routing.assigned(task, choice)
        self._outliers.assigned(task, 0.0 if task.is_paused else choice.predicted_s)
        self._quarantine.assigned(task)
        self._book.charges.assigned(task)
        return Assign(worker.key, task.task_id, task.attempt, task.slot)
