"""What the pool tells the trace of a request; `gateway.tracing` writes the spans."""

from collections.abc import Sequence
from typing import Protocol

from gateway.metrics.ended_task import EndedTask
from gateway.pool.tasks.attempt import Attempt
from protocol.wire.messages import Generate

TRACE = "llamapool.trace"
"""Key of the scope with the trace of the request; it is missing while traces are off."""


class TaskTrace(Protocol):
    """The trace of the request that a task belongs to."""

    def ended(self, request: Generate, task: EndedTask, attempts: Sequence[Attempt]) -> None:
        """Note the end of the task, and where it was."""
