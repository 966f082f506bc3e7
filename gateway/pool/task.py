"""One live task as the dispatcher sees it: its state, and what becomes of it when a worker dies."""

import math
from enum import StrEnum

from gateway.pool.actions import TaskSpec
from protocol.errors import ErrorCode, TaskError

MAX_FAULTS = 2
"""Workers that may die or fail under one task before it is taken for the cause."""


class TaskState(StrEnum):
    """Where a task is; one that ended or was cancelled is forgotten."""

    WAITING = "waiting"
    ASSIGNED = "assigned"
    STARTED = "started"


_NEXT: dict[TaskState, frozenset[TaskState]] = {
    TaskState.WAITING: frozenset({TaskState.ASSIGNED}),
    TaskState.ASSIGNED: frozenset({TaskState.STARTED, TaskState.WAITING}),
    TaskState.STARTED: frozenset({TaskState.WAITING}),
}


class PoolTask:
    """A task between its submission and its end."""

    __slots__ = (
        "attempt",
        "best_cached_worker",
        "charged",
        "deferred_until",
        "held_until",
        "is_patient",
        "is_shown",
        "n_faults",
        "reserved_for",
        "since",
        "spec",
        "state",
        "tried",
        "worker",
    )

    def __init__(self, spec: TaskSpec, now: float, *, is_patient: bool = True) -> None:
        self.spec = spec
        self.state = TaskState.WAITING
        self.attempt = 0
        self.worker = ""
        """Key of the connection that has it; empty while it waits."""
        self.n_faults = 0
        """Workers that died or failed under it."""
        self.tried: set[str] = set()
        """Keys of those that failed it and live on: it goes to another while there is one."""
        self.is_shown = False
        """Whether its client may have seen a byte of the answer: then it cannot begin anew."""
        self.since = now
        """When it entered its state."""
        self.charged = 0.0
        """Tokens counted for its tenant so far."""
        self.is_patient = is_patient
        """Whether it may wait for a better worker than the one that is free."""
        self.reserved_for = ""
        """Key of the busy worker for which it was kept once."""
        self.held_until = 0.0
        self.best_cached_worker: str | None = None
        """Key of the worker that knew most of its prompt when it began to wait."""
        self.deferred_until = math.inf
        """When it stops to let others of its tenant go first; set as it does so first."""

    def __repr__(self) -> str:
        where = self.worker or "queue"
        return f"<PoolTask {self.spec.task_id} {self.state} at {where} attempt={self.attempt}>"

    def turn(self, state: TaskState, now: float) -> None:
        """Change the state; only the transitions of the table are possible."""
        assert state in _NEXT[self.state], f"{self!r} cannot become {state}"
        self.state = state
        self.since = now

    @property
    def may_move(self) -> bool:
        """Whether another worker may begin it anew."""
        return self.n_faults < MAX_FAULTS and not (self.is_shown or self.spec.is_bound)

    def verdict(self, reason: str = "") -> TaskError:
        """Say how the task ends now that its worker is lost or has failed and it may not move."""
        if self.n_faults >= MAX_FAULTS:
            text = f"{self.n_faults} workers failed with this request; it is not tried again"
            return TaskError(ErrorCode.INTERNAL, f"{text}: {reason}" if reason else text)
        # After a death the client is not to send again what may have caused it.
        code = ErrorCode.LOST if self.n_faults else ErrorCode.UNAVAILABLE
        return TaskError(code, "The worker was lost while it answered")
