"""The state of slots and queues as this gateway knows it, without asking a worker. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.tasks.task import Task, TaskState
from protocol.wire.facts import ModelCard

READS, WRITES, ENDS = "r", "w", "e"
"""What a slot does: it reads a prompt, writes an answer, or ends a task that was cancelled."""

SlotUse = tuple[int, str, int]
"""The worker's own number of a slot, what it does, and the tokens of its task in the context.

While a prompt is read these are the tokens that are read so far, cached ones included.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What the tasks of this gateway do."""

    slots: Mapping[str, list[SlotUse]]
    """By worker; slots without a task of this gateway are left out."""
    queue: Mapping[str, Mapping[str, int]]
    """Waiting tasks by model and tenant."""
    cards: Mapping[str, ModelCard]
    """The card of each worker that has sent one."""


def activity(dispatcher: Dispatcher) -> Activity:
    """Look at all tasks of the pool."""
    workers = dispatcher.workers.values()
    return Activity(
        slots={
            worker.name: uses for worker in workers if (uses := slot_uses(worker.tasks.values()))
        },
        queue=dispatcher.queue.shares(),
        cards={worker.name: worker.card for worker in workers if worker.card is not None},
    )


def slot_uses(tasks: Iterable[Task]) -> list[SlotUse]:
    """Return what the slots of one worker do; only tasks that have started are known."""
    return [
        (task.slot, _phase(task), _n_held(task))
        for task in tasks
        if task.has_started and task.slot >= 0 and task.spec.takes_credit
    ]


def _phase(task: Task) -> str:
    if task.state is TaskState.CANCELLED:
        return ENDS
    return WRITES if task.n_deltas else READS


def _n_held(task: Task) -> int:
    n_tokens = task.n_prompt + task.answer.n_predicted
    if task.n_deltas:
        return n_tokens
    # What was preempted is read twice.
    return min(n_tokens, task.n_cached + task.attempts[-1].n_read)
