"""Reads arguments in a notation that is almost JSON, as they arrive, and writes them as JSON."""

import re
from collections.abc import Callable

from worker.output.chat_parser.json_walk import MAX_DEPTH, MalformedJson, json_string
from worker.output.chat_parser.sink import Sink
from worker.output.chat_parser.tag_reader import TagReader, overlap
from worker.output.formats.tool_format import Notation

_MAX_KEY = 256
_MAX_WORD = 64
_WORD = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|true|false|null", re.ASCII)
_WORD_END = re.compile(r"[,}\])\s]")
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[\"'\\/bfnrt])")
_HALF_UNICODE = re.compile(r"\\u[0-9a-fA-F]{0,3}")


class NotatedReader(TagReader):
    """Reads the arguments of one call, up to the text that ends them.

    The call is emitted with its first key or its end. Strings are emitted as they arrive, numbers
    and words when they are complete. What breaks the notation after that is emitted as it is.
    """

    def __init__(self, notation: Notation, name: str, sink: Sink) -> None:
        super().__init__(name, sink)
        self._notation = notation
        self._ends = [notation.close]
        """What ends the objects and arrays that are open."""
        self._step: Callable[[], bool] = self._first
        self._quote = ""
        """What ends the string that is open."""
        self._in_key = False

    @property
    def is_writing(self) -> bool:  # type: ignore[override]
        """Whether what breaks the notation is emitted as it is."""
        return self.has_committed

    def push(self, piece: str) -> None:
        """Take a `piece`; raises `MalformedJson` where the notation does not allow it."""
        self._text += piece
        try:
            while self._text and not self.is_done and self._step():
                pass
        except MalformedJson:
            if self.has_committed:
                self._sink.arguments(self._text[:-1])
            raise

    # ---- steps: each consumes text and returns whether the next step can follow ------------------

    def _first(self) -> bool:
        """Read the end of an empty object or array, or its first part."""
        self._text = self._text.lstrip()
        if self._text[:1] == self._ends[-1]:
            return self._end()
        return bool(self._text) and self._part()

    def _part(self) -> bool:
        """Read a member of an object or an element of an array."""
        if self._ends[-1] == "]":
            return self._value()
        if len(self._ends) > 1 and not self._notation.has_bare_keys:
            self._in_key = True
            return self._value()
        return self._key()

    def _key(self) -> bool:
        """Read a key without quotes, and what separates it from its value."""
        separator = self._separator()
        key, found, rest = self._text.partition(separator)
        self._step = self._key
        if not found:
            if len(key) > _MAX_KEY or self._ends[-1] in key:
                raise MalformedJson
            return False
        begin = "" if self.has_committed else "{"
        self._text, self._step = rest, self._value
        self._put(f"{begin}{json_string(key.strip())}:")
        return True

    def _value(self) -> bool:
        self._step = self._value
        self._text = text = self._text.lstrip()
        if not text:
            return False
        for quote in self._notation.quotes:
            if text.startswith(quote):
                return self._open_string(quote)
            if quote.startswith(text):
                return False
        if self._in_key:
            raise MalformedJson
        if text[0] in "{[":
            return self._open(text[0])
        return self._word()

    def _open(self, char: str) -> bool:
        if len(self._ends) >= MAX_DEPTH:
            raise MalformedJson
        self._text, self._step = self._text[1:], self._first
        self._ends.append("}" if char == "{" else "]")
        self._put(char)
        return True

    def _word(self) -> bool:
        """Read a number or a word."""
        end = _WORD_END.search(self._text)
        if end is None:
            if len(self._text) > _MAX_WORD:
                raise MalformedJson
            return False
        word = self._text[: end.start()]
        word = dict(self._notation.words).get(word, word)
        if not _WORD.fullmatch(word):
            raise MalformedJson
        self._text, self._step = self._text[end.start() :], self._after
        self._put(word)
        return True

    def _open_string(self, quote: str) -> bool:
        self._text, self._step = self._text[len(quote) :], self._string
        self._quote = quote
        self._until = quote[-1]
        self._put('"')
        return True

    def _string(self) -> bool:
        if self._notation.has_escapes and self._text[0] == "\\":
            return self._escape()
        at = self._text.find(self._quote)
        sure = at if at >= 0 else len(self._text) - overlap(self._text, self._quote)
        if self._notation.has_escapes and "\\" in self._text[:sure]:
            sure, at = self._text.index("\\"), -1
        if sure:
            self._put(json_string(self._text[:sure])[1:-1])
        self._text = self._text[sure:]
        if at >= 0:
            self._text = self._text[len(self._quote) :]
            self._put('"')
            self._until = ""
            self._step = self._colon if self._in_key else self._after
        return at >= 0 or sure > 0

    def _escape(self) -> bool:
        """Read an escape; one that JSON does not know is a backslash and its character."""
        text = self._text
        found = _ESCAPE.match(text)
        if found is None:
            is_open = len(text) == 1 or _HALF_UNICODE.fullmatch(text)
            if not is_open:
                self._put("\\\\")
                self._text = text[1:]
            return not is_open
        self._put("'" if found[0] == "\\'" else found[0])
        self._text = text[found.end() :]
        return True

    def _colon(self) -> bool:
        """Read what separates a key in quotes from its value."""
        self._text = self._text.lstrip()
        if self._text and self._text[0] != ":":
            raise MalformedJson
        if not self._text:
            return False
        self._in_key = False
        self._text, self._step = self._text[1:], self._value
        self._put(":")
        return True

    def _after(self) -> bool:
        self._text = self._text.lstrip()
        if not self._text:
            return False
        if self._text[0] == self._ends[-1]:
            return self._end()
        if self._text[0] != ",":
            raise MalformedJson
        self._text, self._step = self._text[1:], self._next
        self._put(",")
        return True

    def _next(self) -> bool:
        self._text = self._text.lstrip()
        return bool(self._text) and self._part()

    def _end(self) -> bool:
        """End what was opened last."""
        end = self._ends.pop()
        self._text, self._step = self._text[1:], self._after
        if self._ends:
            self._put(end)
        else:
            self._put("}" if self.has_committed else "{}")
            self.is_done = True
        return True

    # -------------------------------------------------------------------------------------------

    def _separator(self) -> str:
        return self._notation.separator if len(self._ends) == 1 else ":"

    def _put(self, text: str) -> None:
        self._commit()
        self._sink.arguments(text)
