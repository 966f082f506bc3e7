"""The record of one task: everything the pool knows of it, from its submission to its end.

The dispatcher owns the records and alone changes their state. Queue, workers and routing keep task
ids or references to a record, never copies of what stands in it; a stream is a record's mailbox.
"""

import math
from dataclasses import replace
from enum import StrEnum

from gateway.pool.tasks.answer import Answer
from gateway.pool.tasks.attempt import LOST, Attempt
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.suspect import Suspect
from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Started, Terminal

MAX_FAULTS = 2
"""Workers that may fail a task at one place of its answer; then the task is the cause."""

INTERNAL_ERROR = TaskError(ErrorCode.INTERNAL, "internal error")
"""Shown to a client after an unexpected exception, whose text is for the log only."""


class MoveCause(StrEnum):
    """Why a task moved to another worker."""

    LOST = "lost"
    """Its worker died, hung or could not be reached."""
    FAILED = "failed"
    """Its worker said that it cannot do it."""
    DRAINED = "drained"
    """Its worker drains."""
    EJECTED = "ejected"
    """Its worker fails others, or is far too slow."""
    OVERDUE = "overdue"
    """It waited long in its worker, and another one can take it."""


class RouteReason(StrEnum):
    """Why a task went to its worker."""

    PREFIX = "prefix"
    """The beginning of its prompt should be cached there."""
    SESSION = "session"
    """Its session was there last, and no worker is known to hold its prompt."""
    SPREAD = "spread"
    """Other workers hold its prompt or had its session, but were too busy."""
    LOAD = "load"
    """No worker is known to hold its prompt: the fastest by load."""
    PINNED = "pinned"
    """The request names a slot."""


class TaskState(StrEnum):
    """Where a task is."""

    WAITING = "waiting"
    """In the queue."""
    ASSIGNED = "assigned"
    """Sent to a worker that has not started it."""
    STARTED = "started"
    """Its worker reads the prompt or writes the answer."""
    CANCELLED = "cancelled"
    """It was given up, but its worker has still to end it."""
    ENDED = "ended"


_NEXT: dict[TaskState, frozenset[TaskState]] = {
    TaskState.WAITING: frozenset({TaskState.ASSIGNED, TaskState.ENDED}),
    TaskState.ASSIGNED: frozenset(
        {TaskState.STARTED, TaskState.WAITING, TaskState.CANCELLED, TaskState.ENDED}
    ),
    TaskState.STARTED: frozenset({TaskState.WAITING, TaskState.CANCELLED, TaskState.ENDED}),
    TaskState.CANCELLED: frozenset({TaskState.ENDED}),
    TaskState.ENDED: frozenset(),
}


class Task:
    """One task. It has at most one attempt at a time that a worker has not ended.

    Each transition is one method; `_become` refuses those that `_NEXT` does not list.
    """

    def __init__(self, spec: TaskSpec, now: float) -> None:
        self.spec = spec
        self.task_id = spec.task_id
        self.state = TaskState.WAITING
        self.submitted_at = self.waits_since = now
        self.waited_s = 0.0
        """Time in the queue, before each worker that it had."""
        self.cancelled_at = 0.0
        """When it was cancelled at its worker; 0 unless it was."""
        self.attempt = 0
        self.worker_name = ""
        """Name of the worker that has it, or had it last."""
        self.answer = Answer()
        """The part of its answer that has arrived; written by its stream."""
        self.is_shown = False
        """Whether the client may have seen a part of the answer: then it cannot be restarted."""
        self.n_faults = 0
        """Failures of workers since its answer last grew."""
        self.tried: set[str] = set()
        """Keys of living workers that failed it or had to give it up; others are preferred."""
        self.suspect: Suspect | None = None
        """The suspicion that its request kills workers; None when there is none."""
        self.n_proven = 0
        """Length of the answer that it must go beyond to be cleared."""
        self.n_losses = 0
        """Deaths of workers in a row that had it."""
        self.cause: MoveCause | None = None
        """Why it left its last worker; None if it never did."""
        self.can_be_reserved = True
        """Whether it may wait for a busy worker while another one is free."""
        self.reserved_for = ""
        """Key of the busy worker that it waits, or has waited, for; a task does so once."""
        self.reserved_until = 0.0
        self.best_cached_worker: str | None = None
        """Key of the worker with most of its prompt cached; empty is none, None not looked up."""
        self.deferred_until = math.inf
        """Until when later tasks of its tenant may go first; set when the first one does."""
        self._open_account()
        self._reset()

    def forget_slot(self) -> None:
        """Let any worker run what asked for a slot, because that slot's worker drains."""
        if self.spec.takes_credit:
            self.spec = replace(self.spec, worker="", slot=-1)

    def _open_account(self) -> None:
        self.charged = 0.0
        """Tokens charged to its tenant so far."""
        self.assumed = 0.0
        """Those of them that are a guess, because its prompt was not counted yet."""
        self.attempts: list[Attempt] = []
        """All of them, by their numbers."""
        self.n_open = 0
        """Those that a worker has still to end, moved ones too."""
        self.finish = ""
        """How it ended for who waited for it: a `Finish`, `ok`, or an error code."""

    def _reset(self) -> None:
        """Clear what belongs to one attempt."""
        self.worker = ""
        """Key of the connection that has it; empty while it waits."""
        self.slot = -1
        """The worker's own number of the slot; -1 until it is known."""
        self.route = ""
        """Why it went to its worker (a `RouteReason`); empty while it waits."""
        self.assigned_at = 0.0
        self.started_at: float | None = None
        self.n_prompt = 0
        """Length of the prompt in tokens, as the worker counted it."""
        self.n_cached = 0
        """Tokens of the prompt that the worker found in its cache."""
        self.n_expected = 0
        """Tokens that should have been cached, by the index and its past hit ratio."""
        self.n_indexed = 0.0
        """Tokens that should have been cached, by the index alone."""
        self.n_unread: float | None = None
        """Prompt tokens that the worker must compute; None unless they are pending there."""
        self.n_resumed = 0
        """Tokens of the answer that the worker was given to continue."""
        self.expected_s = 0.0
        """Predicted time from the assignment to the first delta; 0 is unknown."""
        self.is_paused = False
        """Whether its worker computes nothing new for it before it is its turn to be tried."""
        self.is_ready = False
        """Whether its worker has read all that a task that pauses may read."""
        self.risk_since = 0.0
        """When it was assigned, or resumed after a pause."""
        self.n_deltas = 0
        """Deltas that came until `is_trusted`."""
        self.is_trusted = False
        """Whether a delta has come and it is under no suspicion: further ones are not noted."""

    def __repr__(self) -> str:
        where = self.worker or "queue"
        return f"<Task {self.task_id} {self.state} at {where} attempt={self.attempt}>"

    @property
    def has_started(self) -> bool:
        """Whether the worker has started this attempt, cancelled or not."""
        return self.started_at is not None

    def is_at(self, worker: str, attempt: int) -> bool:
        """Return whether this attempt at the worker of this key is the one that counts."""
        return self.worker == worker and self.attempt == attempt

    @property
    def is_at_worker(self) -> bool:
        """Whether a worker has it, cancelled or not."""
        return self.state not in (TaskState.WAITING, TaskState.ENDED)

    @property
    def may_move(self) -> bool:
        """Whether another worker may continue it, or start it again."""
        return not self.spec.is_bound and (self.spec.continues or not self.is_shown)

    @property
    def is_on_trial(self) -> bool:
        """Whether a worker died with it, and it has not gone beyond that place since."""
        return self.suspect is not None and self.suspect.n_deaths > 0

    @property
    def is_proven(self) -> bool:
        """Whether it is on trial, and all that is to be read was computed by a worker before."""
        return self.is_on_trial and bool(self.answer.tokens)

    def proceed(self, now: float) -> None:
        """Note that its worker resumes it after a pause, and computes what no worker has before."""
        self.is_paused, self.risk_since = False, now

    @property
    def queued_s(self) -> float:
        """Seconds from submission to the latest assignment; 0 while the task waits."""
        return max(0.0, self.assigned_at - self.submitted_at) if self.assigned_at else 0.0

    @property
    def ttft_s(self) -> float:
        """Seconds from submission to the first delta; 0 before it."""
        first_at = self.answer.first_at
        return first_at - self.submitted_at if first_at else 0.0

    def assign(self, worker: str, name: str, route: RouteReason, now: float) -> None:
        """Give it to the worker of this key and name."""
        self._become(TaskState.ASSIGNED)
        self.waited_s += max(0.0, now - self.waits_since)
        self.worker, self.worker_name, self.slot = worker, name, self.spec.slot
        self.route, self.assigned_at = route, now
        self.risk_since = now
        self.n_resumed = len(self.answer.tokens)
        self.is_paused = self.is_proven
        self.attempts.append(Attempt(name, route, now, n_before=self.n_resumed))
        self.n_open += 1

    def start(self, message: Started, now: float) -> None:
        """Note that its worker has started it; a cancelled task stays cancelled."""
        if self.state is not TaskState.CANCELLED:
            self._become(TaskState.STARTED)
        self.started_at = now
        self.attempts[-1].start(message, now)
        self.n_prompt, self.n_cached = message.n_prompt, message.n_cached
        self.answer.start(message)
        if self.n_resumed:
            self.n_resumed = max(0, message.n_reread - message.n_prompt + message.n_cached)
        if self.slot < 0:
            self.slot = message.slot

    def show(self) -> None:
        """Note that its client may have seen a part of the answer."""
        self.is_shown = not self.spec.is_whole

    def requeue(self, cause: MoveCause, now: float) -> None:
        """Let another worker continue it; without `continues` it starts again."""
        self._become(TaskState.WAITING)
        self.report()
        self.attempts[-1].end = self.attempts[-1].end or cause
        self.waits_since = now
        self.cause = cause
        self.attempt += 1
        if self.spec.continues:
            self.answer.pause()
        else:
            self.answer = Answer()
        self._reset()
        # A stream that stands still does not wait for the best place.
        self.can_be_reserved, self.deferred_until = False, -math.inf

    def report(self) -> None:
        """Note in the attempt what its deltas have brought."""
        if self.attempts:
            attempt = self.attempts[-1]
            n_predicted = len(self.answer.tokens) - attempt.n_before
            attempt.n_predicted = max(attempt.n_predicted, n_predicted)

    def attempt_ended(self, number: int, message: Terminal | None, now: float) -> None:
        """Note that a worker has ended an attempt, or with None is lost with it."""
        attempt = self.attempts[number]
        if number == self.attempt:
            self.report()
        if message is None:
            attempt.close(LOST, now)
        else:
            attempt.finish(message, now)
        self.n_open -= 1

    @property
    def is_settled(self) -> bool:
        """Whether it has ended, and what it has cost is known."""
        return self.state is TaskState.ENDED and not self.n_open

    def cancel(self, now: float) -> None:
        """Give it up while its worker has it."""
        self._become(TaskState.CANCELLED)
        self.cancelled_at = now

    def end(self) -> None:
        """Make it final."""
        self._become(TaskState.ENDED)

    def verdict(self, reason: str = "") -> TaskError:
        """Return the error that ends it after its worker was lost or has failed."""
        if self.n_faults >= MAX_FAULTS:
            text = f"{self.n_faults} workers failed with this request; it is not tried again"
            return TaskError(ErrorCode.INTERNAL, f"{text}: {reason}" if reason else text)
        bound = "that held the slot was lost, and the slot with it"
        what = bound if self.spec.is_bound else "was lost while it answered"
        # After a death the client is not told to send again what may have caused it.
        code = ErrorCode.LOST if self.n_losses else ErrorCode.UNAVAILABLE
        return TaskError(code, f"The worker {what}")

    def _become(self, state: TaskState) -> None:
        assert state in _NEXT[self.state], f"{self!r} cannot become {state}"
        self.state = state
