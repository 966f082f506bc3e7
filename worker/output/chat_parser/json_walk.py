"""Reads one JSON value character by character, and reports where each value in it lies."""

import json
from enum import Enum, auto

from worker.output.formats.tool_format import Path

MAX_DEPTH = 200
"""Arrays and objects inside one another."""

_SPACE = " \t\n\r"
_SCALAR = frozenset("0123456789+-.eEtrufalsn")
_ESCAPES = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")
_N_HEX = 4
_DECODER = json.JSONDecoder(strict=False)
_ENCODER = json.JSONEncoder(ensure_ascii=False)


class MalformedJson(Exception):
    """The character just pushed makes the JSON invalid."""


class _WalkState(Enum):
    VALUE = auto()
    FIRST_VALUE = auto()
    """Of an array, which may also end here."""
    FIRST_KEY = auto()
    """Of an object, which may also end here."""
    KEY = auto()
    COLON = auto()
    AFTER = auto()
    """A value has ended: a comma or the end of its container follows."""
    STRING = auto()
    ESCAPE = auto()
    UNICODE = auto()
    SCALAR = auto()
    DONE = auto()


class JsonWalk:
    """After each `push`, three paths tell which values the character starts and ends."""

    def __init__(self) -> None:
        self._state = _WalkState.VALUE
        self._stack: list[tuple[str, Path]] = []
        self._text: list[str] = []
        self._in_key = False
        self._n_hex = 0
        self._path: Path = ()
        self.started: Path | None = None
        """A value begins with this character."""
        self.ended: Path | None = None
        """A value ends with this character."""
        self.ended_before: Path | None = None
        """A number or word ended with the character before this one."""
        self.is_done = False
        """The value is complete."""

    @property
    def is_in_string(self) -> bool:
        """The last character was inside a string, not its closing quote."""
        return self._state in (_WalkState.STRING, _WalkState.ESCAPE, _WalkState.UNICODE)

    @property
    def is_in_plain_string(self) -> bool:
        """The last character was inside a string and in no escape."""
        return self._state is _WalkState.STRING

    @property
    def text(self) -> str:
        """The string or word that has ended, as it was written."""
        return "".join(self._text)

    def push(self, char: str) -> None:
        """Take one character; raises `MalformedJson`."""
        self.started = self.ended = self.ended_before = None
        match self._state:
            case _WalkState.STRING | _WalkState.ESCAPE | _WalkState.UNICODE:
                self._string(char)
            case _WalkState.SCALAR:
                self._scalar(char)
            case _:
                self._between(char)

    def _between(self, char: str) -> None:
        """Deal with a character outside strings and words."""
        if char in _SPACE and self._state is not _WalkState.DONE:
            return
        match self._state:
            case _WalkState.FIRST_VALUE if char == "]":
                self._close(char)
            case _WalkState.VALUE | _WalkState.FIRST_VALUE:
                self._begin(char)
            case _WalkState.FIRST_KEY if char == "}":
                self._close(char)
            case _WalkState.FIRST_KEY | _WalkState.KEY if char == '"':
                self._in_key = True
                self._open_string()
            case _WalkState.COLON if char == ":":
                self._state = _WalkState.VALUE
            case _WalkState.AFTER if char == ",":
                self._next()
            case _WalkState.AFTER if char in "}]":
                self._close(char)
            case _:
                raise MalformedJson

    def _begin(self, char: str) -> None:
        self.started = self._path
        if char in "{[":
            if len(self._stack) >= MAX_DEPTH:
                raise MalformedJson
            self._stack.append((char, self._path))
            is_object = char == "{"
            self._state = _WalkState.FIRST_KEY if is_object else _WalkState.FIRST_VALUE
            if not is_object:
                self._path = (*self._path, None)
        elif char == '"':
            self._in_key = False
            self._open_string()
        elif char in _SCALAR:
            self._text = [char]
            self._state = _WalkState.SCALAR
        else:
            raise MalformedJson

    def _next(self) -> None:
        kind, path = self._stack[-1]
        self._path = path if kind == "{" else (*path, None)
        self._state = _WalkState.KEY if kind == "{" else _WalkState.VALUE

    def _close(self, char: str) -> None:
        kind, path = self._stack.pop()
        if kind + char not in ("{}", "[]"):
            raise MalformedJson
        self._path = path
        self._text = []
        self._end_value()

    def _end_value(self) -> None:
        self.ended = self._path
        self.is_done = not self._stack
        self._state = _WalkState.DONE if self.is_done else _WalkState.AFTER

    def _open_string(self) -> None:
        self._text = ['"']
        self._state = _WalkState.STRING

    def _string(self, char: str) -> None:
        self._text.append(char)
        if self._state is _WalkState.STRING:
            if char == '"':
                self._end_string()
            elif char == "\\":
                self._state = _WalkState.ESCAPE
            return
        match self._state:
            case _WalkState.ESCAPE if char == "u":
                self._state, self._n_hex = _WalkState.UNICODE, 0
            case _WalkState.ESCAPE if char in _ESCAPES:
                self._state = _WalkState.STRING
            case _WalkState.UNICODE if char in _HEX:
                self._n_hex += 1
                if self._n_hex == _N_HEX:
                    self._state = _WalkState.STRING
            case _:
                raise MalformedJson

    def _end_string(self) -> None:
        if not self._in_key:
            self._end_value()
            return
        self._path = (*self._stack[-1][1], unquote(self.text))
        self._state = _WalkState.COLON

    def _scalar(self, char: str) -> None:
        if char in _SCALAR:
            self._text.append(char)
            return
        try:
            json.loads(self.text)
        except ValueError:
            raise MalformedJson from None
        before = self._path
        self._end_value()
        self.ended = None
        self._between(char)
        self.ended_before = before


def unquote(text: str) -> str:
    """Decode a JSON string; raw line breaks pass, halves of surrogate pairs do not."""
    value = _DECODER.decode(text)
    assert isinstance(value, str)
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def json_string(text: str) -> str:
    """Write a text as a JSON string."""
    return _ENCODER.encode(text)
