"""What the pool tells the trace of a request; `gateway.tracing` writes the spans."""

from typing import Protocol

from gateway.metrics.ended_task import EndedTask
from protocol.wire.messages import Generate

TRACE = "llamapool.trace"
"""Key of the scope with the trace of the request; it is missing while traces are off."""


class TaskTrace(Protocol):
    """The trace of the request that a task belongs to; times are those of the event loop."""

    def assigned(self, task_id: int, worker: str, route: str, now: float) -> None:
        """Note that a worker of this name has the task now, the first one or another one."""

    def ended(self, task_id: int, request: Generate, task: EndedTask) -> None:
        """Note the end of the task."""
