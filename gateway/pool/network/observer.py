"""The events that the connections of workers report."""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from gateway.pool.network.worker_connection import WorkerConnection
from protocol.errors import TaskError
from protocol.wire.messages import FrameItem


class Loss(Enum):
    """How a connection was lost."""

    LEFT = "left"
    """In order, or for a fault that is not the worker's."""
    BROKEN = "broken"
    """It has ended; counts as a death, unless the same process connects again."""
    DIED = "died"

    @property
    def is_death(self) -> bool:
        """Whether its tasks count as those of a worker that died."""
        return self is not Loss.LEFT


class ConnectionObserver(Protocol):
    """Receiver of messages and lost connections."""

    def joined(self, peer: WorkerConnection) -> None:
        """Register a worker that sent `Hello`."""

    def received(self, peer: WorkerConnection, items: Sequence[FrameItem], now: float) -> None:
        """Take the messages of one frame; raises `ProtocolError` for what no worker sends."""

    def expects(self, peer: WorkerConnection) -> bool:
        """Whether a worker has a task, so that its answer may be large."""

    def lost(self, peer: WorkerConnection, reason: str, loss: Loss) -> None:
        """Act on a lost connection."""

    def refused(self, peer: WorkerConnection, item: FrameItem, error: TaskError) -> None:
        """End the task of a message that could not be sent."""

    def dropped(self, n: int) -> None:
        """Count messages that belong to no task."""

    def failed(self, place: str) -> None:
        """Log and count the exception that is being handled."""
