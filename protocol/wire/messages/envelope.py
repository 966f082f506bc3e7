"""Base classes of messages: those of the connection, and those of one task in an envelope."""

from dataclasses import dataclass
from typing import NamedTuple

from protocol.wire.facts import Usage


class TaskKey(NamedTuple):
    """Names one attempt at one task."""

    id: int
    attempt: int = 0
    connection: int = 0
    """The worker's number of the connection that the task came over; it does not travel."""


class Message:
    """Base of the messages of the connection; travels without an envelope."""

    __slots__ = ()


class TaskMessage:
    """Base of the payloads, which concern one task. A payload does not know which one."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTask(TaskMessage):
    """Base of the tasks that a client's request asks for."""

    request_id: str = ""
    """`X-Request-Id` of the request, for log lines; empty if no client asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal(TaskMessage):
    """Base of the messages that end a task."""

    usage: Usage = Usage()
    """All that the attempt has cost, however it ended."""


class Envelope(NamedTuple):
    """A payload and the task that it belongs to."""

    task: TaskKey
    payload: TaskMessage
    slot: int = -1
    """The slot that a task shall run in, by the worker's own number; -1 is any."""


FrameItem = Message | Envelope
"""One entry of a frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed(TaskMessage):
    """Never travels: stands for a payload that its receiver could not read."""

    reason: str
