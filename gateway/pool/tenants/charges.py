"""The cost of tasks for their tenants, in computed tokens, as the fair queue counts.

Pure. A prompt is charged by its guessed length when it is assigned, corrected when the worker has
counted it, and the answer is added at the end, also if its client has left.
"""

from gateway.pool.task import Task
from gateway.pool.tenants.task_queue import TaskQueue
from protocol.wire.messages import Done, Failed, Finish, TaskMessage

CACHED_COST = 0.1
"""Cost of a prompt token that was found in a cache, in computed tokens."""


def cost(n_prompt: int, n_cached: int, n_predicted: int = 0) -> float:
    """Return the cost of a task in computed tokens; never more tokens are cached than read."""
    return n_prompt - (1 - CACHED_COST) * min(n_cached, n_prompt) + n_predicted


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
        self._add(task, cost(answer.n_prompt, answer.n_cached) - task.charged)

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
        """Give everything back: the task starts again, or has never started."""
        self._add(task, -task.charged)

    def total(self, task: Task) -> float:
        """Return the cost of a task that ends now.

        A worker that was lost reports no counts; then the part of the answer that came is counted.
        """
        answer = task.answer
        if not answer.n_prompt:
            return task.charged
        return max(task.charged, cost(answer.n_prompt, answer.n_cached, answer.n_told))

    def _add(self, task: Task, tokens: float) -> None:
        task.charged += tokens
        self._queue.charge(task, tokens)
