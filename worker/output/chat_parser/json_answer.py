"""Removes the code fence and white space around an answer in JSON."""

_FENCE = "```json"
_SPACE = " \t\n\v\f\r"


class JsonAnswer:
    """`push` text; what may be the end of the fence is held back until more JSON comes."""

    def __init__(self) -> None:
        self._head = ""
        """Text that may be the beginning of the fence."""
        self._is_open = False
        """Whether the JSON has started."""
        self._held: list[str] = []
        self._depth = 0
        """Number of open brackets; white space between them is part of the answer."""
        self._in_string = False
        self._is_escaped = False

    def push(self, text: str) -> str:
        """Return the part of the text that belongs to the answer."""
        if not self._is_open:
            text = (self._head + text).lstrip(_SPACE)
            if len(text) < len(_FENCE) and _FENCE.startswith(text):
                self._head = text
                return ""
            text, self._head = text.removeprefix(_FENCE).lstrip(_SPACE), _FENCE
            if not text:
                return ""
            self._is_open = True
        return "".join(map(self._take, text))

    def _take(self, char: str) -> str:
        if not (self._in_string or self._depth) and (char == "`" or char in _SPACE):
            self._held.append(char)
            return ""
        if char == '"' and not self._is_escaped:
            self._in_string = not self._in_string
        elif not self._in_string:
            self._depth += (char in "{[") - (char in "}]")
        self._is_escaped = self._in_string and char == "\\" and not self._is_escaped
        held, self._held = self._held, []
        return "".join(held) + char
