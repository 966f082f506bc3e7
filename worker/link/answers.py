"""The parsers of the chats that run: text becomes content, thoughts and tool calls."""

from collections.abc import Callable
from dataclasses import replace

from protocol.wire.messages import Delta, Done, Failed, Message, TaskMessage, Terminal
from worker.output.chat_parser.parser import ChatParser

_Key = tuple[int, int]
Fault = Callable[[TaskMessage, Exception], Failed]
"""Ends the task of a message that its parser cannot read."""


class ChatParsers:
    """Keeps one parser a chat, from its submission to its terminal message."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._parsers: dict[_Key, ChatParser] = {}

    def open(self, key: _Key, parser: ChatParser) -> None:
        """Begin to parse what is said of a task."""
        self._parsers[key] = parser

    def clear(self) -> None:
        """Forget all: nobody waits for them any more."""
        self._parsers.clear()

    def parse(self, messages: list[Message]) -> list[Message]:
        """Take texts apart; what was held back goes out before the end.

        A parser that fails ends its own task; nothing of that follows.
        """
        if not self._parsers:
            return messages
        out: list[Message] = []
        failed: set[_Key] = set()
        for message in messages:
            if failed and isinstance(message, TaskMessage) and _key(message) in failed:
                continue
            try:
                if type(message) is Delta:
                    out.append(self._delta(message))
                elif isinstance(message, Terminal):
                    out += self._end(message)
                else:
                    out.append(message)
            except Exception as error:
                assert isinstance(message, TaskMessage)
                self._parsers.pop(_key(message), None)
                failed.add(_key(message))
                out.append(self._fault(message, error))
        return out

    def _delta(self, delta: Delta) -> Delta:
        parser = self._parsers.get((delta.task_id, delta.attempt))
        if parser is None:
            return delta
        parsed = parser.feed(delta.text)
        if parsed.content == delta.text and not (parsed.reasoning or parsed.tool_calls):
            return delta  # most of an answer is what it seems to be
        return replace(
            delta, text=parsed.content, reasoning=parsed.reasoning, tool_calls=parsed.tool_calls
        )

    def _end(self, message: Terminal) -> list[Message]:
        parser = self._parsers.pop((message.task_id, message.attempt), None)
        if parser is None or not isinstance(message, Done):
            return [message]
        parsed = parser.finish()
        if not parsed:
            return [message]
        rest = Delta(
            task_id=message.task_id,
            attempt=message.attempt,
            text=parsed.content,
            reasoning=parsed.reasoning,
            tool_calls=parsed.tool_calls,
            n_predicted=message.n_predicted,
        )
        return [rest, message]


def _key(message: TaskMessage) -> _Key:
    return message.task_id, message.attempt
