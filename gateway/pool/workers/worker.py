"""The connected workers with their credits.

Pure bookkeeping of the dispatcher. A credit is a slot, or a place for a prefetched task, as the
gateway counts it: taken when a task is assigned, returned by its terminal message and nothing else.
"""

from enum import StrEnum

from gateway.pool.tasks.task import Task, TaskState
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Heartbeat, TaskKey


class WorkerState(StrEnum):
    """What a connected worker does."""

    LOADING = "loading"
    READY = "ready"
    LEAVING = "leaving"
    """It drains: it finishes the tasks that it has and disconnects."""


_NEXT: dict[WorkerState, frozenset[WorkerState]] = {
    WorkerState.LOADING: frozenset({WorkerState.READY, WorkerState.LEAVING}),
    WorkerState.READY: frozenset({WorkerState.LEAVING}),
    WorkerState.LEAVING: frozenset(),
}


Waiting = tuple[int, float]
"""How many tasks wait for a worker's credits, and since when the first of them does."""
NOBODY: Waiting = (0, 0.0)

_MIN_SLOTLESS = 16
_SLOTLESS_PER_SLOT = 4
"""Tasks that need no slot (tokenize, embeddings) and that a worker may have: the larger of both."""


class Worker:
    """One connection of one worker.

    Each method that changes what a choice of a worker depends on calls `_changed`.
    """

    def __init__(self, key: str, name: str, model: str, changes: "dict[Worker, None]") -> None:
        """`changes` is the set to which it adds itself, so that `LoadOrder` ranks it again."""
        self._changes = changes
        self.key = key
        self.name = name
        self.model = model
        self.state = WorkerState.LOADING
        self.card: ModelCard | None = None
        self.is_held = False
        """Whether it is being tried: it takes only tasks of the gateway's own that name it."""
        self.is_sleeping = False
        """Whether its model is unloaded: the next task loads it and waits."""
        self.tasks: dict[int, Task] = {}
        """What it has been sent and has not ended, in order of assignment."""
        self.abandoned: dict[TaskKey, Task] = {}
        """Attempts at tasks that went elsewhere and that it has not ended: they hold credits."""
        self.is_ejected = False
        """Whether it failed too often: it gets one task at a time, as a probe."""
        self.may_probe = False
        """Whether it may have the next probe now."""
        self.n_taken = 0
        """Credits taken."""
        self.n_slotless = 0
        """Tasks that need no slot, except those of the gateway's own that name this worker."""
        self.last_used = 0
        """Number of the pool's latest assignment to it."""
        self.granted = 0
        """Credits that the worker has given to this gateway; below 0 if it has taken some back."""
        self.returned = 0
        """Credits that this gateway has given back when it was asked."""
        self.n_others = 0
        """Tasks of other gateways there that have a credit, as it said last."""
        self.is_crowded = False
        """Whether tasks waited in it at the latest look."""
        self.is_shared = False
        """Whether other gateways use it too."""
        self.demanded: Waiting = NOBODY
        """The latest demand that was sent to it."""
        self._changed()

    def _changed(self) -> None:
        self._changes[self] = None

    def leave(self) -> None:
        """Stop noting changes: it is not connected any more."""
        self._changes = {}

    def __repr__(self) -> str:
        return (
            f"<Worker {self.name} {self.state} model={self.model} "
            f"taken={self.n_taken}/{self.n_slots}+{self.n_credits - self.n_slots}>"
        )

    @property
    def n_slots(self) -> int:
        """Tasks that it runs at once."""
        return self.card.n_slots if self.card is not None else 0

    @property
    def n_prefetch(self) -> int:
        """Tasks that may be sent beyond the slots."""
        return self.card.n_prefetch if self.card is not None else 0

    @property
    def model_fingerprint(self) -> str:
        """Equal for workers that may continue each other's answers; empty before it has loaded."""
        return self.card.fingerprint if self.card is not None else ""

    @property
    def is_ready(self) -> bool:
        """Whether it takes new tasks."""
        return self.state is WorkerState.READY and not self.is_held

    @property
    def n_busy(self) -> int:
        """Slots in use as far as the gateway knows."""
        n_load, n_slots = self.n_taken + self.n_others, self.n_slots
        return n_load if n_load < n_slots else n_slots

    @property
    def n_load(self) -> int:
        """Tasks there that have a credit, those of other gateways too."""
        return self.n_taken + self.n_others

    @property
    def n_ahead(self) -> int:
        """Tasks that were sent ahead and wait in the worker for a slot."""
        n_ahead = self.n_taken + self.n_others - self.n_slots
        return n_ahead if n_ahead > 0 else 0

    @property
    def waiting(self) -> list[Task]:
        """Tasks of this gateway that wait in it, while others run there, in order of assignment.

        They wait for a slot, or for room in a context that all slots share. Those on trial have
        limits of their own.
        """
        mine = [task for task in self.tasks.values() if task.spec.takes_credit]
        if not (self.n_others or any(task.has_started for task in mine)):
            return []
        return [task for task in mine if task.state is TaskState.ASSIGNED and not task.is_on_trial]

    def look(self) -> None:
        """Note whether tasks wait in it: it is looked at now and then, not at each change."""
        if self.is_crowded is not bool(self.waiting):
            self.is_crowded = not self.is_crowded
            self._changed()

    @property
    def n_free(self) -> int:
        """Free slots."""
        n_free = self.n_slots - self.n_taken - self.n_others
        return n_free if n_free > 0 else 0

    @property
    def n_credits(self) -> int:
        """Tasks that this gateway may have there at once; without other gateways, all that fit."""
        n_all = self.n_slots + self.n_prefetch
        return min(n_all, n_all + self.granted - self.returned)

    @property
    def has_credit(self) -> bool:
        """Whether one more task may be sent."""
        return self.is_ready and self.n_taken < self.n_credits and self.is_trusted

    @property
    def is_trusted(self) -> bool:
        """Whether it does well, or is due for a probe."""
        return self.may_probe or not self.is_ejected

    @property
    def lacks_credit(self) -> bool:
        """Whether one more task could be sent if another gateway gave a credit up."""
        has_use = self.is_shared and self.is_ready and self.is_trusted
        return has_use and self.n_taken >= self.n_credits

    @property
    def takes_slotless(self) -> bool:
        """Whether one more task may be sent that needs no slot."""
        if not (self.is_ready and self.is_trusted):
            return False
        return self.n_slotless < max(_MIN_SLOTLESS, _SLOTLESS_PER_SLOT * self.n_slots)

    @property
    def slots(self) -> dict[int, int]:
        """Slots that are known to be taken, with the id of the task that has it or will."""
        started_last = sorted(self.tasks.values(), key=lambda task: task.has_started)
        return {
            task.slot: task.task_id
            for task in started_last
            if task.spec.takes_credit and task.slot >= 0
        }

    def has_place_in(self, slot: int) -> bool:
        """Whether a task that must have this slot may be sent, with a credit.

        It may if the slot is free, as far as is known. While no slot is, one task may wait in the
        worker for a busy one: here it would wait for ever, because tasks that were sent ahead take
        the slot.
        """
        if slot not in self.slots:
            return True
        waits_there = any(
            task.spec.takes_credit and task.spec.slot >= 0 and not task.has_started
            for task in self.tasks.values()
        )
        return not self.n_free and not waits_there

    def open(self, card: ModelCard, *, is_held: bool, granted: int) -> None:
        """Note that it has loaded its model."""
        self.become(WorkerState.READY)
        self.card, self.model = card, card.name
        self.is_held, self.granted = is_held, granted

    def admit(self) -> None:
        """Note that it is no longer held."""
        self.is_held = False
        self._changed()

    def sleep(self, is_sleeping: bool) -> None:
        """Note whether its model is unloaded."""
        if is_sleeping is not self.is_sleeping:
            self.is_sleeping = is_sleeping
            self._changed()

    def eject(self) -> None:
        """Give it one task at a time from now on, each as a probe."""
        self.is_ejected, self.may_probe = True, False
        self._changed()

    def let_in(self) -> None:
        """End its ejection."""
        self.is_ejected = self.may_probe = False
        self._changed()

    def allow_probe(self, is_allowed: bool) -> None:
        """Note whether it may have the next probe now."""
        self.may_probe = is_allowed
        self._changed()

    def take(self, task: Task, number: int) -> None:
        """Take the credit of a task that is assigned to it; `number` counts all assignments."""
        self.tasks[task.task_id] = task
        self.n_taken += task.spec.takes_credit
        self.n_slotless += task.spec.is_slotless
        self.last_used = number
        self._changed()

    def release(self, task: Task) -> None:
        """Return the credit of a task that it has ended."""
        del self.tasks[task.task_id]
        self._return_credit(task)

    def _return_credit(self, task: Task) -> None:
        self.n_taken -= task.spec.takes_credit
        self.n_slotless -= task.spec.is_slotless
        self._changed()

    def share(self, heartbeat: Heartbeat) -> bool:
        """Take in what it grants; return whether it changes where a waiting task may go.

        Another gateway that takes its last free slot does: tasks may be sent ahead then.
        """
        n_credits, n_others = self.n_credits, self.n_others
        before = self.granted, self.n_others, self.is_shared
        after = heartbeat.granted, heartbeat.others, heartbeat.is_shared
        if after != before:  # mostly nothing has changed
            self.granted, self.n_others, self.is_shared = after
            self._changed()
        return self.n_credits > n_credits or self.n_others != n_others

    def give_back(self, n: int) -> int:
        """Return up to n credits that are not in use; tell how many."""
        n_unused = min(max(0, n), max(0, self.n_credits - self.n_taken))
        self.returned += n_unused
        self._changed()
        return n_unused

    def abandon(self, task: Task) -> None:
        """Note that a task goes elsewhere; its credit comes back when the worker has ended it."""
        del self.tasks[task.task_id]
        self.abandoned[TaskKey(task.task_id, task.attempt)] = task

    def release_abandoned(self, key: TaskKey) -> Task | None:
        """Return the credit of an attempt whose task went elsewhere, and the task if there is one.

        The task may have ended.
        """
        task = self.abandoned.pop(TaskKey(key.id, key.attempt), None)
        if task is not None:
            self._return_credit(task)
        return task

    def become(self, state: WorkerState) -> None:
        """Change the state; only the transitions of `_NEXT` are possible."""
        assert state in _NEXT[self.state], f"{self!r} cannot become {state}"
        self.state = state
        self._changed()
