"""The tasks that the engine runs: which of its messages leave, and how a chat's text is parsed."""

from collections.abc import Callable, KeysView, Sequence
from dataclasses import replace

from protocol.wire.messages import Delta, Done, Envelope, FrameItem, TaskKey, Terminal
from worker.output.continued import AnswerParser

ParserFault = Callable[[TaskKey, Exception], Envelope]
"""Ends a task whose text its parser cannot read; returns its terminal message."""


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

    def clear(self, connection: int) -> None:
        """Forget the tasks of a connection: their gateway is gone."""
        for key in [key for key in self._parsers if key.connection == connection]:
            del self._parsers[key]

    def tell(self, items: Sequence[FrameItem]) -> tuple[list[FrameItem], bool]:
        """Return what the gateway is to hear of these messages, and whether a task has ended.

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


def _delta(parser: AnswerParser, delta: Delta) -> Delta:
    parsed = parser.feed(delta.text)
    if parsed.content == delta.text and not (parsed.reasoning or parsed.tool_calls):
        return delta  # most of an answer is plain text
    return replace(
        delta, text=parsed.content, reasoning=parsed.reasoning, tool_calls=parsed.tool_calls
    )
