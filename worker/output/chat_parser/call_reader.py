"""Reads the JSON of tool calls as it arrives: first the name, then arguments piece by piece."""

import re
from collections.abc import Set

from worker.output.chat_parser.json_walk import JsonWalk, MalformedJson, json_string, unquote
from worker.output.chat_parser.sink import Sink
from worker.output.formats.tool_format import Path, ToolFormat

_NAME_KEYS = frozenset({"name", "tool_name"})
_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_KNOWN_KEYS = _NAME_KEYS | _ARGUMENT_KEYS | {"id", "tool_call_id", "type", "function"}

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_HALF_PAIR = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})$")
"""The first half of a surrogate pair at the end; its own backslash follows no other's escape."""


class CallReader:
    """Reads one JSON value: a call, several, an answer as text, or only the arguments of a call.

    A call is emitted once its name is known to be that of a tool and its arguments have started;
    until then it may still be content. An emitted call cannot be taken back.
    """

    def __init__(
        self, tools: ToolFormat, names: Set[str], sink: Sink, *, name: str = "", is_strict: bool
    ) -> None:
        self._tools = tools
        self._names = names
        self._sink = sink
        self._is_strict = is_strict
        """The JSON was not marked as a call, so an unknown key means that it is none."""
        self._walk = JsonWalk()
        self._name = name
        self._named_before = bool(name)
        self._pending: list[str] = []
        self._is_open = False
        self._writes: Path | None = None
        """Path of the value whose characters are emitted as they arrive."""
        self._quoted: list[str] | None = None
        """The part of a string value that is not decoded yet."""
        self.has_committed = False
        """Whether anything was emitted."""

    @property
    def is_done(self) -> bool:
        """Whether the value is complete."""
        return self._walk.is_done

    @property
    def unread(self) -> str:
        """Text to give back; empty, because the parser keeps all text until the call is open."""
        return ""

    @property
    def is_open(self) -> bool:
        """Whether a call was emitted, or an answer as text has started."""
        return self._is_open or (self._writes is not None and self._writes == self._tools.content)

    @property
    def is_writing(self) -> bool:
        """Whether arguments of an emitted call are being read."""
        return self._is_open and self._writes is not None

    def piece(self, text: str, at: int) -> str:
        """Return what `push` takes next: one character, or all that are plain in a string."""
        plain = _PLAIN.match(text, at) if self._walk.is_in_plain_string else None
        return text[at] if plain is None else plain[0]

    def push(self, char: str) -> None:
        """Take a `piece`; raises `MalformedJson` where this cannot be a call."""
        walk = self._walk
        walk.push(char)
        if walk.ended_before is not None and walk.ended_before == self._writes:
            self._writes = None
        if walk.started is not None:
            self._start(walk.started, char)
        if self._writes is not None:
            self._write(char)
        if walk.ended is not None:
            self._end(walk.ended)
        raise_unless(self.has_committed or not walk.is_done)

    def _start(self, path: Path, char: str) -> None:
        if self._writes is not None:
            return
        is_arguments = self._is_arguments(path)
        if is_arguments and self._tools.is_keyed:
            self._name = path[-1] or ""
        if is_arguments and not self._named_before and char == "n":
            return  # null: there are none
        if is_arguments or path == self._tools.content:
            raise_unless(not is_arguments or char == "{" or (char == '"' and path != ()))
            self._writes = path
            self._quoted = [] if char == '"' else None
        elif self._is_strict and not self.has_committed:
            self._check_key(path)

    def _check_key(self, path: Path) -> None:
        """Raise an error for a key that no call has, if only the keys identify a call."""
        if not path:
            return
        is_known = path[-1] is None or path[-1] in _KNOWN_KEYS
        expected = any(call[: len(path)] == path for call in self._tools.calls)
        raise_unless(expected or (is_known and path[:-1] in self._tools.calls))

    def _is_arguments(self, path: Path) -> bool:
        if self._named_before:
            return path == ()
        keys = self._names if self._tools.is_keyed else _ARGUMENT_KEYS
        return bool(path) and path[-1] in keys and path[:-1] in self._tools.calls

    def _write(self, char: str) -> None:
        if self._quoted is not None:
            if self._walk.started is None:  # not the opening quote
                self._quoted.append(char)
            if self._writes == self._tools.content:
                self._decode()
            return
        if char < " " and self._walk.is_in_string:
            char = json_string(char)[1:-1]  # a raw line break in a string, as models write it
        self._put(char)

    def _decode(self) -> None:
        """Emit the decodable part of an answer as text: complete escapes and surrogate pairs."""
        assert self._quoted is not None
        if not self._quoted or not self._walk.is_in_plain_string:
            return
        text, half = "".join(self._quoted), ""
        if found := _HALF_PAIR.search(text):
            text, half = text[: found.start(1)], found[1]
        if text:
            self._put(unquote(f'"{text}"'))
        self._quoted = [half] if half else []

    def _put(self, text: str) -> None:
        """Emit a piece of the current value, or keep it until the name is known."""
        if self._writes == self._tools.content:
            self.has_committed = True
            self._sink.content(text)
        elif self._is_open:
            self._sink.arguments(text)
        elif self._name:
            self._commit()
            self._sink.arguments(text)
        else:
            self._pending.append(text)

    def _commit(self) -> None:
        self._sink.open_call(self._name)
        self._is_open = self.has_committed = True
        if self._pending:
            self._sink.arguments("".join(self._pending))
            self._pending = []

    def _end(self, path: Path) -> None:
        if path == self._writes:
            if self._quoted is not None:
                text = "".join(self._quoted)
                self._quoted = None
                self._put(unquote(f'"{text}'))
            self._writes = None
        elif self._is_name(path):
            self._learn_name()
        if self._named_before or path not in self._tools.calls:
            return
        if self._name and not self._is_open:
            self._pending = self._pending or ["{}"]
            self._commit()
        raise_unless(self._is_open or path == ())
        self._name, self._is_open, self._pending = "", False, []

    def _is_name(self, path: Path) -> bool:
        is_key = bool(path) and path[-1] in _NAME_KEYS and path[:-1] in self._tools.calls
        return is_key and not self._tools.is_keyed

    def _learn_name(self) -> None:
        text = self._walk.text
        raise_unless(text.startswith('"'))
        name = unquote(text)
        raise_unless(name in self._names)
        self._name = name
        if self._pending and self._writes is None:
            self._commit()


def raise_unless(holds: bool) -> None:
    """Raise `MalformedJson` unless this can still be a call."""
    if not holds:
        raise MalformedJson
