"""The rest of an answer of which the client already has a part.

The text of the other worker goes through the parser again, so that the parser has the same state.
Only those parts of the answer are returned that the client does not have.
"""

from dataclasses import replace
from typing import Protocol

from protocol.wire.messages import ToolCallDelta
from protocol.wire.partial_answer import PartialAnswer
from worker.output.chat_parser.parser import ChatParser
from worker.output.chat_parser.sink import ParsedPart


class AnswerParser(Protocol):
    """Parses the text of one answer while it is generated."""

    def feed(self, text: str) -> ParsedPart:
        """Take text; return the parts that are certain now."""

    def finish(self) -> ParsedPart:
        """Return the text that was held back."""


class ContinuedAnswer:
    """Parses an answer whose beginning another worker has sent."""

    def __init__(self, parser: ChatParser | None, sent: PartialAnswer, text: str) -> None:
        """`text` is that of the tokens of `sent`; what the client lacks of it is returned first."""
        self._parser = parser
        self._n_text, self._n_reasoning = sent.n_text, sent.n_reasoning
        self._n_arguments = list(sent.n_arguments)
        """Characters to leave out, for each call that was sent."""
        self._lacking = self._cut(self._parse(text))

    def feed(self, text: str) -> ParsedPart:
        """Take text; return what the client does not have."""
        return self._next(self._parse(text))

    def finish(self) -> ParsedPart:
        """Return the text that was held back."""
        return self._next(ParsedPart() if self._parser is None else self._parser.finish())

    def _parse(self, text: str) -> ParsedPart:
        return ParsedPart(text) if self._parser is None else self._parser.feed(text)

    def _next(self, parsed: ParsedPart) -> ParsedPart:
        found = self._cut(parsed)
        first, self._lacking = self._lacking, ParsedPart()
        if not first:
            return found
        return ParsedPart(
            first.content + found.content,
            first.reasoning + found.reasoning,
            first.tool_calls + found.tool_calls,
        )

    def _cut(self, parsed: ParsedPart) -> ParsedPart:
        """Leave out what the client has."""
        content, reasoning = parsed.content[self._n_text :], parsed.reasoning[self._n_reasoning :]
        self._n_text -= len(parsed.content) - len(content)
        self._n_reasoning -= len(parsed.reasoning) - len(reasoning)
        calls = tuple(call for call in map(self._cut_call, parsed.tool_calls) if call is not None)
        return ParsedPart(content, reasoning, calls)

    def _cut_call(self, call: ToolCallDelta) -> ToolCallDelta | None:
        if call.index >= len(self._n_arguments):
            return call
        arguments = call.arguments[self._n_arguments[call.index] :]
        self._n_arguments[call.index] -= len(call.arguments) - len(arguments)
        return replace(call, id="", name="", arguments=arguments) if arguments else None
