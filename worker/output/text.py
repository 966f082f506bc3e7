"""Bytes of tokens to text: characters come whole, stop strings never come at all."""

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns the pieces of one generation into text that may be shown.

    A character whose bytes are not all there is held back, and so is an ending that may yet become
    a stop string. `feed` returns what is certain; `flush` what was held back in vain.
    """

    __slots__ = ("_decoder", "_held", "_stops", "stopping_word")

    def __init__(self, stops: Sequence[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stops)
        self._held = ""
        self.stopping_word = ""

    def feed(self, piece: bytes) -> str:
        """Take the bytes of one token; return the text that became certain."""
        text = self._decoder.decode(piece)
        if not self._stops:
            return text
        text = self._held + text
        self._held = ""
        start = self._find(text)
        if start is not None:
            return text[:start]
        keep = self._partial(text)
        if keep:
            self._held = text[-keep:]
            return text[:-keep]
        return text

    def flush(self) -> str:
        """Return what was held back for a stop string; half a character is dropped."""
        held, self._held = self._held, ""
        return "" if self.stopping_word else held

    def _find(self, text: str) -> int | None:
        """Find the earliest stop string: whatever came before cannot be part of one."""
        found: int | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (found is None or start < found):
                found, self.stopping_word = start, stop
        return found

    def _partial(self, text: str) -> int:
        """Length of the longest ending that a stop string starts with."""
        longest = max(len(stop) for stop in self._stops) - 1
        for length in range(min(longest, len(text)), 0, -1):
            ending = text[-length:]
            if any(stop.startswith(ending) for stop in self._stops):
                return length
        return 0
