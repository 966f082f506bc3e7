"""The parsers of the chats that run: text becomes content, thoughts and tool calls."""

from collections.abc import Callable
from dataclasses import replace

from protocol.wire.messages import Delta, Done, Envelope, FrameItem, TaskKey, Terminal
from worker.output.chat_parser.parser import ChatParser

Fault = Callable[[TaskKey, Exception], Envelope]
"""Ends a task whose text its parser cannot read."""


class ChatParsers:
    """Keeps one parser a chat, from its submission to its terminal message."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._parsers: dict[TaskKey, ChatParser] = {}

    def open(self, key: TaskKey, parser: ChatParser) -> None:
        """Begin to parse what is said of a task."""
        self._parsers[key] = parser

    def clear(self) -> None:
        """Forget all: nobody waits for them any more."""
        self._parsers.clear()

    def parse(self, items: list[FrameItem]) -> list[FrameItem]:
        """Take texts apart; what was held back goes out before the end.

        A parser that fails ends its own task; nothing of that follows.
        """
        if not self._parsers:
            return items
        out: list[FrameItem] = []
        failed: set[TaskKey] = set()
        for item in items:
            if not isinstance(item, Envelope):
                out.append(item)
            elif item.task not in failed:
                try:
                    out += self._parsed(item)
                except Exception as error:
                    self._parsers.pop(item.task, None)
                    failed.add(item.task)
                    out.append(self._fault(item.task, error))
        return out

    def _parsed(self, envelope: Envelope) -> list[Envelope]:
        """Return what is to be said in place of a message of the engine."""
        key, payload, _ = envelope
        if type(payload) is Delta:
            parser = self._parsers.get(key)
            delta = payload if parser is None else _delta(parser, payload)
            return [envelope if delta is payload else Envelope(key, delta)]
        if not isinstance(payload, Terminal):
            return [envelope]
        parser = self._parsers.pop(key, None)
        if parser is None or not isinstance(payload, Done):
            return [envelope]
        parsed = parser.finish()
        if not parsed:
            return [envelope]
        rest = Delta(
            text=parsed.content,
            reasoning=parsed.reasoning,
            tool_calls=parsed.tool_calls,
            n_predicted=payload.n_predicted,
        )
        return [Envelope(key, rest), envelope]


def _delta(parser: ChatParser, delta: Delta) -> Delta:
    parsed = parser.feed(delta.text)
    if parsed.content == delta.text and not (parsed.reasoning or parsed.tool_calls):
        return delta  # most of an answer is what it seems to be
    return replace(
        delta, text=parsed.content, reasoning=parsed.reasoning, tool_calls=parsed.tool_calls
    )
