"""Collects the parts that a parser recognizes; consecutive pieces of one kind are joined."""

import secrets
import string
from dataclasses import dataclass

from protocol.wire.messages import ToolCallDelta
from worker.output.chat_parser.json_answer import JsonAnswer

_ALPHABET = string.ascii_letters + string.digits
_CHARS = bytes(ord(_ALPHABET[byte % len(_ALPHABET)]) for byte in range(256))
"""Byte -> the character of an id."""


@dataclass(frozen=True, slots=True)
class ParsedPart:
    """A recognized part of an answer."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)


_NOTHING = ParsedPart()


class Sink:
    """Collects parts until they are taken."""

    def __init__(self, id_length: int, answer: JsonAnswer | None = None) -> None:
        self._id_length = id_length
        self._answer = answer
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[int, str, str, list[str]]] = []
        self._index = -1

    @property
    def has_called(self) -> bool:
        """Whether a call has started."""
        return self._index >= 0

    def content(self, text: str) -> None:
        """Add content."""
        text = text if self._answer is None else self._answer.push(text)
        if text:
            self._content.append(text)

    def reasoning(self, text: str) -> None:
        """Add reasoning."""
        if text:
            self._reasoning.append(text)

    def open_call(self, name: str) -> None:
        """Begin the next call."""
        self._index += 1
        call_id = secrets.token_bytes(self._id_length).translate(_CHARS).decode()
        self._calls.append((self._index, call_id, name, []))

    def arguments(self, text: str) -> None:
        """Add to the arguments of the latest call."""
        if not self._calls:
            self._calls.append((self._index, "", "", []))
        self._calls[-1][3].append(text)

    def take(self) -> ParsedPart:
        """Return the parts since the last call."""
        if not (self._content or self._reasoning or self._calls):
            return _NOTHING
        parsed = ParsedPart(
            "".join(self._content),
            "".join(self._reasoning),
            tuple(
                ToolCallDelta(index=index, id=call_id, name=name, arguments="".join(pieces))
                for index, call_id, name, pieces in self._calls
            ),
        )
        self._content, self._reasoning, self._calls = [], [], []
        return parsed
