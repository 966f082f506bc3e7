"""Reads reasoning as it arrives, up to its end mark, without the marks' white space."""

from worker.output.chat_parser.markers import MarkerKind, MarkerSet, find
from worker.output.formats.reasoning_marks import WhiteSpace

_WHITE = " \t\n\v\f\r"
"""White space by C's `isspace`."""
_BLANK = " \t\n\r"
"""Reasoning that consists of these only is dropped."""


class Spaces:
    """Drops the white space that belongs to a mark."""

    def __init__(self, space: WhiteSpace) -> None:
        self._left = space

    def eat(self, text: str) -> str:
        """Return the text without the white space that is still to be dropped."""
        if self._left is None:
            text = text.lstrip(_WHITE)
            self._left = "" if text else None
        while self._left and text:
            text = text.removeprefix(self._left[0])
            self._left = self._left[1:]
        return text


class ReasoningReader:
    """One block of reasoning; `push` text until it `is_over`.

    What was held back at the end of the answer is lost, as in llama-server: it may be the beginning
    of the end mark, or white space without words.
    """

    def __init__(self, ends: MarkerSet, after_open: WhiteSpace) -> None:
        self._spaces = Spaces(after_open)
        self._ends = ends
        self._text = ""
        """Text that is not classified yet."""
        self._held: list[str] = []
        """White space that is reasoning if words follow."""
        self._has_words = False
        self.is_over = False
        self.rest = ""
        """Text after the end mark."""

    def push(self, text: str) -> str:
        """Take text; return the part that is reasoning."""
        self._text = self._spaces.eat(self._text + text)
        at, marker, end = find(self._ends, self._text)
        if marker is not None:
            self.is_over = True
            self.rest = self._text[end if marker.kind is MarkerKind.CLOSER else at :]
        thought, self._text = self._text[:at], self._text[at:]
        if self._has_words:
            return thought
        self._held.append(thought)
        self._has_words = bool(thought.strip(_BLANK))
        return "".join(self._held) if self._has_words else ""
