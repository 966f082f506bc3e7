"""What tasks cost their tenants: the currency of the fair queue is the computed token.

Pure. A prompt is charged by its guessed length when it is assigned, corrected when the worker has
counted it, and the answer is added at the end, also if its client has left.
"""

from gateway.pool.task import Task
from gateway.pool.tenants.task_queue import TaskQueue
from protocol.wire.messages import Done, Failed, Finish, TaskMessage

CACHED_COST = 0.1
"""Cost of a prompt token that was found in a cache, in computed tokens."""


class Charges:
    """Charges each task to its tenant in the queue."""

    def __init__(self, queue: TaskQueue) -> None:
        self._queue = queue

    def assigned(self, task: Task) -> None:
        """Charge the prompt by its guessed length."""
        self._add(task, task.spec.n_tokens)

    def started(self, task: Task) -> None:
        """Charge the prompt by what has to be computed of it."""
        answer = task.answer  # what is read again because a worker was lost costs nothing
        n_cached = min(answer.n_cached, answer.n_prompt)
        self._add(task, answer.n_prompt - (1 - CACHED_COST) * n_cached - task.charged)

    def ended(self, task: Task, message: TaskMessage) -> None:
        """Charge the answer; a task that ends before it has started costs nothing."""
        if isinstance(message, Done):
            self._add(task, message.n_predicted)
            is_void = message.finish is Finish.CANCELLED
        else:
            is_void = isinstance(message, Failed)
        if is_void and not task.has_started:
            self.refund(task)

    def refund(self, task: Task) -> None:
        """Give everything back: the task begins anew, or never began."""
        self._add(task, -task.charged)

    def total(self, task: Task) -> float:
        """Return what a task that ends now has cost, also where no worker has said so at its end.

        A worker that was lost brings no count: what has come of the answer is counted.
        """
        answer = task.answer
        if not answer.n_prompt:
            return task.charged
        n_cached = min(answer.n_cached, answer.n_prompt)
        seen = answer.n_prompt - (1 - CACHED_COST) * n_cached + answer.n_told
        return max(task.charged, seen)

    def _add(self, task: Task, tokens: float) -> None:
        task.charged += tokens
        self._queue.charge(task, tokens)
