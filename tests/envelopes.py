"""What stands in envelopes, for tests that look at payloads or at one task."""

from collections.abc import Iterable
from typing import TypeVar

from protocol.wire.messages import Envelope, FrameItem, Message, TaskMessage

Payload = Message | TaskMessage
T = TypeVar("T", bound=Payload)


def payload_of(item: FrameItem) -> Payload:
    """Return a message of the connection itself, or what stands in its envelope."""
    return item.payload if isinstance(item, Envelope) else item


def payloads(items: Iterable[FrameItem], kind: type[T]) -> list[T]:
    """List the messages of a kind."""
    return [found for found in map(payload_of, items) if isinstance(found, kind)]


def of_task(items: Iterable[FrameItem], task_id: int) -> list[TaskMessage]:
    """List what was said of a task."""
    envelopes = (one for one in items if isinstance(one, Envelope))
    return [one.payload for one in envelopes if one.task.id == task_id]
