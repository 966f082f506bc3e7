"""What tasks cost their tenants: the currency of the fair queue is the computed token.

Pure. A prompt is guessed when it is assigned and counted when it starts; the answer is added at the
end; also of tasks that nobody waits for any more.
"""

from gateway.pool.task import PoolTask, TaskState
from gateway.pool.task_queue import TaskQueue
from protocol.wire.messages import Done, Failed, Finish, Started, Terminal

CACHED_COST = 0.1
"""Of a prompt's token that was found in a cache, beside one that had to be computed."""


class Charges:
    """Counts what each task has cost so far."""

    def __init__(self, backlog: TaskQueue) -> None:
        self._backlog = backlog

    def assigned(self, task: PoolTask) -> None:
        """Charge the prompt by its guessed length."""
        self._add(task, task.spec.n_tokens)

    def started(self, task: PoolTask, message: Started) -> None:
        """Charge the prompt by what had to be computed of it."""
        n_cached = min(message.n_cached, message.n_prompt)
        self._add(task, message.n_prompt - (1 - CACHED_COST) * n_cached - task.charged)

    def ended(self, task: PoolTask, message: Terminal) -> None:
        """Charge the answer; a task that ends before it began has cost nothing."""
        if isinstance(message, Done):
            self._add(task, message.n_predicted)
            is_void = message.finish is Finish.CANCELLED
        else:
            is_void = isinstance(message, Failed)
        if is_void and task.state is TaskState.ASSIGNED:
            self.refund(task)

    def refund(self, task: PoolTask) -> None:
        """Give everything back: the task begins anew, or never began."""
        self._add(task, -task.charged)

    def _add(self, task: PoolTask, tokens: float) -> None:
        task.charged += tokens
        self._backlog.charge(task.spec, tokens)
