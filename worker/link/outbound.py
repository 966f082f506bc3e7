"""The way out: from the engine's thread, through the parsers of chats, to the gateways."""

import queue
import socket
from collections.abc import Callable, Collection, KeysView, Sequence
from dataclasses import replace

from protocol.wire.messages import Delta, Done, Envelope, FrameItem, TaskKey, Terminal
from worker.link.gateways.sessions import Sessions
from worker.output.continued import AnswerParser
from worker.output.recorded import RecordedAnswer

ParserFault = Callable[[TaskKey, Exception], Envelope]
"""Ends a task whose text its parser cannot read; returns its terminal message."""


class OutboundQueue:
    """Messages of the engine and of the side threads on their way to the link.

    A byte in a socket pair wakes the link's poll.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Sequence[FrameItem]] = queue.SimpleQueue()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.fd = self._reader.fileno()
        """Readable when something was put."""

    def put(self, messages: Sequence[FrameItem]) -> None:
        """Hand messages over; safe in any thread and in signal handlers."""
        self._queue.put(messages)
        self.wake()

    def wake(self) -> None:
        """Make the link's poll return."""
        try:
            self._writer.send(b"\0")
        except OSError:  # it is full of wake-ups already, or closed at the end
            return

    def take(self) -> list[FrameItem]:
        """Return everything that was put, in order."""
        try:
            self._reader.recv(256)  # what is left, if anything, wakes the next poll
        except BlockingIOError:  # nothing was put, or its byte is still to come
            return []
        messages: list[FrameItem] = []
        while not self._queue.empty():
            messages += self._queue.get_nowait()
        return messages

    def close(self) -> None:
        """Close both ends."""
        self._reader.close()
        self._writer.close()


class RunningTasks:
    """Keeps each task from its submission to the engine until its terminal message."""

    def __init__(self, fault: ParserFault) -> None:
        self._fault = fault
        self._parsers: dict[TaskKey, AnswerParser | None] = {}
        """By task; None where the text is not parsed."""

    def __len__(self) -> int:
        return len(self._parsers)

    def __contains__(self, key: TaskKey) -> bool:
        return key in self._parsers

    @property
    def keys(self) -> KeysView[TaskKey]:
        """The attempts that run."""
        return self._parsers.keys()

    def add(self, key: TaskKey, parser: AnswerParser | None = None) -> None:
        """Note a task that the engine is given; its text goes through `parser`."""
        self._parsers[key] = parser

    def drop(self, key: TaskKey) -> None:
        """Send nothing more of a task."""
        self._parsers.pop(key, None)

    def clear(self, connection: int, kept: Collection[TaskKey]) -> None:
        """Forget the tasks of a connection but those that are kept: their gateway is gone."""
        for key in [key for key in self._parsers if key.connection == connection]:
            if key not in kept:
                del self._parsers[key]

    def outgoing(self, items: Sequence[FrameItem]) -> tuple[list[FrameItem], bool]:
        """Return the messages to send in place of these, and whether a task has ended.

        Messages of tasks that do not run are dropped. A parser that fails ends its own task.
        """
        out: list[FrameItem] = []
        has_ended = False
        for item in items:
            if not isinstance(item, Envelope):
                out.append(item)
            elif (key := item.task) in self._parsers:
                has_ended |= isinstance(item.payload, Terminal)
                try:
                    out += self._parsed(item)
                except Exception as error:
                    out.append(self._fault(key, error))
                    has_ended = True
        return out, has_ended

    def _parsed(self, envelope: Envelope) -> list[Envelope]:
        """Return what is sent in place of a message; text that was held back precedes the end."""
        key, payload, _ = envelope
        if type(payload) is Delta:
            parser = self._parsers[key]
            delta = payload if parser is None else _delta(parser, payload)
            return [envelope if delta is payload else Envelope(key, delta)]
        if not isinstance(payload, Terminal):
            return [envelope]
        parser = self._parsers.pop(key)
        if isinstance(parser, RecordedAnswer) and isinstance(payload, Done):
            payload = replace(payload, raw=parser.text)
            envelope = Envelope(key, payload)
        parsed = parser.finish() if parser is not None and isinstance(payload, Done) else None
        if not parsed:
            return [envelope]
        assert isinstance(payload, Done)
        rest = Delta(
            text=parsed.content,
            reasoning=parsed.reasoning,
            tool_calls=parsed.tool_calls,
            n_predicted=payload.n_predicted,
        )
        return [Envelope(key, rest), envelope]


class Outbound:
    """Sends the gateways the messages of the engine and of the link's own thread."""

    def __init__(
        self,
        outbound_queue: OutboundQueue,
        running: RunningTasks,
        sessions: Sessions,
        cancel: Callable[[TaskKey], Sequence[FrameItem]],
    ) -> None:
        """`cancel` stops a task and returns the messages that follow from that."""
        self._queue = outbound_queue
        self._running = running
        self._sessions = sessions
        self._cancel = cancel

    def forward(self) -> bool:
        """Send what other threads have queued; return whether there was anything.

        With the end of a task the counters are sent, too.
        """
        items = self._queue.take()
        wanted, has_ended = self._running.outgoing(items)
        if has_ended:
            self.send(wanted, with_heartbeat=True)
        elif wanted:
            self._cancel_ended(self._sessions.send(wanted))
        return bool(items)

    def send(self, items: Sequence[FrameItem], *, with_heartbeat: bool = False) -> None:
        """Send messages of which some may end tasks, and cancel tasks that could not be sent.

        With `with_heartbeat` the gateways whose tasks have ended get the counters.
        """
        if items:
            self._cancel_ended(self._sessions.send_ends(items, with_heartbeat=with_heartbeat))

    def _cancel_ended(self, keys: Sequence[TaskKey]) -> None:
        """Stop tasks that have ended because a message of them could not be sent."""
        for key in keys:
            self.send(self._cancel(key))


def _delta(parser: AnswerParser, delta: Delta) -> Delta:
    parsed = parser.feed(delta.text)
    if parsed.content == delta.text and not (parsed.reasoning or parsed.tool_calls):
        return delta  # most of an answer is plain text
    return replace(
        delta, text=parsed.content, reasoning=parsed.reasoning, tool_calls=parsed.tool_calls
    )
