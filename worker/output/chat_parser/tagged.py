"""Reads arguments in tags as they arrive, and writes them as JSON."""

import json
from collections.abc import Callable, Mapping, Set

from worker.output.chat_parser.json_walk import JsonWalk, MalformedJson, json_string
from worker.output.chat_parser.sink import Sink
from worker.output.chat_parser.tag_reader import TagReader, overlap
from worker.output.formats.tool_format import Tagged

Types = Mapping[str, Set[str]]
"""Argument -> JSON's names of the types that its value may have."""

STRING = frozenset({"string"})
ANY_TYPE = frozenset({"string", "number", "boolean", "null", "array", "object"})
_STARTS = {
    "number": frozenset("-0123456789"),
    "boolean": frozenset("tf"),
    "null": frozenset("n"),
    "array": frozenset("["),
    "object": frozenset("{"),
}
_MAX_KEY = 256


class TaggedReader(TagReader):
    """Reads the arguments of one call, up to the tag after the last.

    The call is emitted with its first key or its end. Strings, arrays and objects are emitted as
    they arrive, other values when they are complete.
    """

    def __init__(self, tagged: Tagged, name: str, types: Types, sink: Sink) -> None:
        super().__init__(name, sink)
        self._tagged = tagged
        self._types = types
        self._go(self._between, tagged.key_open, tagged.close)
        self._found: Set[str] = ANY_TYPE
        self._closer = tagged.value_close
        self._walk = JsonWalk()
        self._blank: list[str] = []
        """White space before the tag that comes next."""
        self._parts: list[str] = []
        """The part of a value that is emitted when it is complete."""

    @property
    def unread(self) -> str:
        """Text to give back, without the last character."""
        return "".join([*self._blank, self._text])[:-1]

    def piece(self, text: str, at: int) -> str:
        """Return what `push` takes next: a tag's rest, a part of other text, or one character."""
        n_read = len(self._text)
        for tag in self._tags:
            if text.startswith(tag[n_read:], at) and tag.startswith(self._text):
                return tag[n_read:]
        end = at + max(1, _MAX_KEY - n_read)  # the character that makes a key too long comes alone
        return text[at : text.find(self._until, at, end) + 1 or end]

    def push(self, piece: str) -> None:
        """Take a `piece`; raises `MalformedJson` if neither an argument nor the end comes."""
        self._text += piece
        while self._text and not self.is_done and self._step():
            pass

    # ---- steps: each consumes text and returns whether the next step can follow ------------------

    def _between(self) -> bool:
        """Wait for a key or the end."""
        tagged = self._tagged
        if self._takes(tagged.key_open):
            self._go(self._key, until=tagged.key_close[-1])
            return True
        if self._takes(tagged.close):
            self._put("}" if self.has_committed else "{}")
            self.is_done = True
            return False
        if not any(tag.startswith(self._text) for tag in self._tags):
            self._give_up("}")
        return False

    def _key(self) -> bool:
        key, close, rest = self._text.partition(self._tagged.key_close)
        if not close:
            if len(self._text) > _MAX_KEY:
                self._text = self._tagged.key_open + self._text
                self._give_up("}")
            return False
        key, self._text = key.strip(), rest
        self._found = self._types.get(key, ANY_TYPE)
        self._put(", " if self.has_committed else "{")
        self._put(f"{json_string(key)}: ")
        if self._tagged.kinds:
            self._go(self._told_kind, *self._tagged.kinds)
        else:
            self._after_key()
        return bool(rest)

    def _after_key(self) -> None:
        tagged = self._tagged
        if tagged.has_type:
            self._go(self._typed, until=tagged.value_open[-1])
        elif tagged.value_open:
            self._go(self._open, tagged.value_open)
        else:
            self._go(self._begin)

    def _told_kind(self) -> bool:
        """Read whether the value is a string; the schema stands where it allows only the other."""
        assert self._tagged.kinds is not None
        for text, types in zip(self._tagged.kinds, (STRING, ANY_TYPE - STRING), strict=True):
            if self._text.startswith(text):
                self._text = self._text.removeprefix(text)
                self._found = self._found & types or self._found
                self._after_key()
                return bool(self._text)
        if not any(text.startswith(self._text) for text in self._tagged.kinds):
            self._give_up("null}")
        return False

    def _open(self) -> bool:
        if self._takes(self._tagged.value_open):
            self._go(self._begin)
            return True
        if not self._tagged.value_open.startswith(self._text):
            self._give_up("null}")
        return False

    def _typed(self) -> bool:
        """Read the type of a value; one that the schema does not allow tells nothing."""
        kind, tag, rest = self._text.partition(self._tagged.value_open)
        if not tag:
            if len(kind) > _MAX_KEY:
                self._give_up("null}")
            return False
        self._found = {kind} if kind in self._found else self._found
        self._text = rest
        self._go(self._begin)
        return bool(rest)

    def _begin(self) -> bool:
        """Find out from its first character what a value is, and where it ends."""
        is_block = self._tagged.is_block and self._text[0] == "\n"
        close = self._tagged.value_close
        self._closer = f"\n{close}\n" if is_block else close
        if is_block and self._closer.startswith(self._text):
            return False  # the value may be empty: one line break stands for both
        if self._tagged.quotes and "string" in self._found:
            begin, end = self._tagged.quotes
            if begin.startswith(self._text):
                return False  # the value may be quoted
            if self._text.startswith(begin):
                self._text = self._text.removeprefix(begin)
                self._closer = end + close
                self._found = STRING
        is_empty = self._text.startswith(self._closer)
        if is_block and not is_empty:
            self._text = self._text[1:]
        if "string" not in self._found:
            self._go(self._value)
        elif is_empty or not self._starts(self._text[0]):
            self._put('"')
            self._go(self._string, until=self._closer[-1])
        else:
            self._go(self._whole, until=self._closer[-1])
        return True

    def _starts(self, char: str) -> bool:
        """Whether a value that begins with this character may be other than a string."""
        return any(char in chars for kind, chars in _STARTS.items() if kind in self._found)

    def _string(self) -> bool:
        """Emit text as part of a JSON string."""
        at = self._text.find(self._closer)
        sure = at if at >= 0 else len(self._text) - overlap(self._text, self._closer)
        self._put(_quoted(self._text[:sure]))
        self._text = self._text[sure:]
        if at < 0:
            return False
        self._put('"')
        self._end_value()
        return True

    def _value(self) -> bool:
        """Choose between arrays or objects and other values."""
        self._text = self._text.lstrip()
        if not self._text:
            return False
        self._closer = self._tagged.value_close
        self._walk = JsonWalk()
        if self._text[0] in "[{":
            self._go(self._walked)
        else:
            self._go(self._whole, until=self._closer[-1])
        return True

    def _walked(self) -> bool:
        """Emit JSON; if it becomes invalid, emit the rest up to the tag as it is."""
        char = self._text[0]
        try:
            self._walk.push(char)
        except MalformedJson:
            self._go(self._broken, until=self._closer[-1])
            return True
        self._text = self._text[1:]
        is_raw = self._walk.is_in_string and char < " "
        self._put(_quoted(char) if is_raw else char)
        if self._walk.is_done:
            self._go(self._broken, until=self._closer[-1])
        return True

    def _broken(self) -> bool:
        at = self._text.find(self._closer)
        sure = at if at >= 0 else len(self._text) - overlap(self._text, self._closer)
        self._put(self._text[:sure] if not self._walk.is_done else "")
        self._text = self._text[sure:]
        if at >= 0:
            self._end_value()
        return at >= 0

    def _whole(self) -> bool:
        """Wait for the end of a value that is JSON or, if it is not, a string."""
        at = self._text.find(self._closer)
        sure = at if at >= 0 else len(self._text) - overlap(self._text, self._closer)
        self._parts.append(self._text[:sure])
        self._text = self._text[sure:]
        if at < 0:
            return False
        text, self._parts = "".join(self._parts), []
        may_be_string = "string" in self._found
        # Where the schema allows no string, white space around the value is not part of it.
        text = text if may_be_string else text.strip()
        is_json = _kind(text) in self._found - {"string"}
        self._put(text if is_json else f'"{_quoted(text)}"')
        self._end_value()
        return True

    def _end_value(self) -> None:
        self._text = self._text[len(self._closer) :]
        self._go(self._between, self._tagged.key_open, self._tagged.close)

    # -------------------------------------------------------------------------------------------

    def _go(self, step: Callable[[], bool], *tags: str, until: str = "") -> None:
        """Go on with a step: one of some tags must come, or text up to a character may."""
        self._step, self._tags, self._until = step, tags, until

    def _takes(self, tag: str) -> bool:
        """Consume a tag, and white space before it."""
        if self._text[:1].isspace():
            text = self._text.lstrip()
            self._blank.append(self._text[: len(self._text) - len(text)])
            self._text = text
        if not self._text.startswith(tag):
            return False
        self._text = self._text[len(tag) :]
        self._blank.clear()
        return True

    def _give_up(self, end: str) -> None:
        """End here, with a complete call if one was emitted."""
        if self.has_committed:
            self._put(end)
        raise MalformedJson

    def _put(self, text: str) -> None:
        self._commit()
        if text:
            self._sink.arguments(text)


def _quoted(text: str) -> str:
    return json_string(text)[1:-1]


def _kind(text: str) -> str:
    """Name the type of a JSON text; empty: it is none."""
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return ""
    for kind, types in _PYTHON.items():
        if isinstance(value, types):
            return kind
    return ""


def _refuse(name: str) -> None:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse)
_PYTHON: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "number": (int, float),
    "null": type(None),
    "array": list,
    "object": dict,
}
