"""Which waiting task goes next, and to which worker. Pure; the dispatcher performs it."""

from gateway.pool.routing.deferral import DeferralPolicy
from gateway.pool.routing.policy import RouteChoice, RoutingPolicy
from gateway.pool.task import Task, TaskSpec
from gateway.pool.tenants.task_queue import TaskQueue
from gateway.pool.workers import Worker, least_busy


class TaskPlacement:
    """Brings the order of the queue, the workers' credits and the routing together."""

    def __init__(self, workers: dict[str, Worker], queue: TaskQueue, router: RoutingPolicy) -> None:
        self.deferral = DeferralPolicy(router, timeout_s=queue.timeout_s)
        self._workers = workers
        self._queue = queue
        self._router = router

    def __repr__(self) -> str:
        return f"<TaskPlacement {self._queue!r} {self.deferral!r}>"

    def next(self, model: str, now: float) -> tuple[Task, RouteChoice] | None:
        """Find the first waiting task that has a worker to go to and gains nothing by waiting."""
        able = [w for w in self._workers.values() if w.model == model and w.has_credit]
        has_rivals = len(self._queue) > 1

        def defers(task: Task) -> bool:
            return has_rivals and self.deferral.defers(task, able, self._workers.values(), now)

        for task in self._queue.candidates(model, has_credit=bool(able), defers=defers):
            choice = self.find(task, now)
            if choice is not None and not self.deferral.reserves(task, choice, self._workers, now):
                return task, choice
        return None

    def find(self, task: Task, now: float) -> RouteChoice | None:
        """Find the worker that a task should go to now; None if it must wait for one."""
        spec = task.spec
        able = (self.others(task) if task.tried else []) or self._owners(spec)
        if not spec.takes_credit:
            # What the gateway itself asks of one worker is sent whatever the worker has to do.
            aside = least_busy(one for one in able if spec.worker or one.takes_aside)
            return RouteChoice(aside) if aside is not None else None
        if spec.slot >= 0:
            owner = next((worker for worker in able if worker.can_run_in(spec.slot)), None)
            return self._router.pinned(spec, owner, now) if owner is not None else None
        return self._router.choose(spec, able, now)

    def others(self, task: Task) -> list[Worker]:
        """List the ready workers that may run a task and have not failed it."""
        owners = self._owners(task.spec)
        return [one for one in owners if one.is_ready and one.key not in task.tried]

    def _owners(self, spec: TaskSpec) -> list[Worker]:
        """List the workers that may run a task, ready or not."""
        return [
            worker
            for worker in self._workers.values()
            if worker.model == spec.model and spec.worker in ("", worker.name)
        ]
