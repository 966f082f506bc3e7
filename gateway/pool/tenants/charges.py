"""The cost of tasks for their tenants, in computed tokens, as the fair queue counts.

Pure. A prompt is charged by its guessed length when it is assigned, corrected when the worker has
counted it, and the answer is added at the end, also if its client has left.

A task that ends before its prompt is read has computed no tokens, but it has kept others from its
place in the worker, perhaps for seconds: a template, a grammar or an image may take that long, and
then be refused. So its tenant's turn is put off by as many tokens as a stream gets in that time;
they count for the turns in the queue alone, not for the limits of the key.
"""

from collections.abc import Callable

from gateway.pool.tasks.task import Task
from gateway.pool.tenants.task_queue import TaskQueue
from protocol.wire.messages import Done, Failed, Finish, TaskMessage
from protocol.wire.side_tasks import Embedded, Reranked

CACHED_COST = 0.1
"""Cost of a prompt token that was found in a cache, in computed tokens."""


def cost(n_prompt: int, n_cached: int, n_predicted: int = 0) -> float:
    """Return the cost of a task in computed tokens; never more tokens are cached than read."""
    return n_prompt - (1 - CACHED_COST) * min(n_cached, n_prompt) + n_predicted


class Charges:
    """Charges each task to its tenant in the queue."""

    def __init__(self, queue: TaskQueue, tokens_per_s: Callable[[str], float]) -> None:
        """`tokens_per_s` returns how many tokens one stream of a model gets in a second."""
        self._queue = queue
        self._tokens_per_s = tokens_per_s

    def assigned(self, task: Task) -> None:
        """Charge the prompt by its guessed length."""
        self._add(task, task.spec.n_tokens)
        task.assumed = task.spec.n_tokens
        self._queue.assume(task, task.assumed)

    def started(self, task: Task) -> None:
        """Charge the prompt by what has to be computed of it."""
        self.settle(task)
        answer = task.answer  # what is read again because a worker was lost costs nothing
        self._add(task, cost(answer.n_prompt, answer.n_cached) - task.charged)

    def ended(self, task: Task, message: TaskMessage, now: float) -> None:
        """Charge the answer, or the time of a task that ends before it has started.

        The task's last attempt has ended.
        """
        is_void = isinstance(message, Failed)
        match message:
            case Done():
                self._add(task, message.n_predicted)
                is_void = message.finish is Finish.CANCELLED
            case Embedded() | Reranked():  # what was guessed of them is counted now
                self._add(task, task.attempts[-1].n_prompt - task.charged)
        if is_void and not task.has_started:
            self.refund(task)
            held_s = max(0.0, now - task.assigned_at)
            self._queue.charge(task, held_s * self._tokens_per_s(task.spec.model))

    def refund(self, task: Task) -> None:
        """Give everything back: the task starts again, or has never started."""
        self.settle(task)
        self._add(task, -task.charged)

    def settle(self, task: Task) -> None:
        """Note that nothing of the task's cost is a guess any longer; idempotent."""
        if task.assumed:
            self._queue.assume(task, -task.assumed)
            task.assumed = 0.0

    def total(self, task: Task) -> float:
        """Return the cost of a task that ends now.

        A worker that was lost reports no counts; then the part of the answer that came is counted.
        """
        answer = task.answer
        if not answer.n_prompt:
            return task.charged
        return max(task.charged, cost(answer.n_prompt, answer.n_cached, answer.n_reported))

    def _add(self, task: Task, tokens: float) -> None:
        task.charged += tokens
        self._queue.charge(task, tokens)
