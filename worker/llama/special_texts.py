"""Where to cut a text that is full of special tokens.

llama.cpp looks for special tokens first, and walks over all parts that it has for each that it
finds: 20,000 of `<|im_start|>` take a second, 90,000 of `<s>` twenty, in one call that nothing can
stop. After such a token a new text may begin without changing any token of it.
"""

from collections.abc import Iterable

import numpy as np

MAX_SPECIAL = 2048
"""Special tokens of one piece: they take some milliseconds."""


class SpecialTexts:
    """The texts of a vocabulary's special tokens."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._texts = frozenset(text for text in texts if text)
        self._lengths = sorted(set(map(len, self._texts)), reverse=True)
        self._longest = max(self._lengths, default=0)
        self._begins = np.zeros(1 << 16, np.bool_)
        """Which pairs of bytes a special token may begin with."""
        for text in self._texts:
            pair = text[0] << 8
            if len(text) > 1:
                self._begins[pair | text[1]] = True
            else:
                self._begins[pair : pair + 256] = True

    def cut(self, data: bytes, start: int, end: int) -> int:
        """Return where a piece that begins at `start` must end; `end` if it has not too many."""
        found = np.frombuffer(data, np.uint8, end - start, start).astype(np.uint16)
        places = np.flatnonzero(self._begins[(found[:-1] << 8) | found[1:]])
        if len(places) <= MAX_SPECIAL:
            return end
        n, at = 0, start
        for place in places:
            begin = start + int(place)
            if begin < at or not (length := self._length_at(data, begin)):
                continue
            n, at = n + 1, begin + length
            if n >= MAX_SPECIAL and at < end and self._is_whole(data, begin, at):
                return at
        return end

    def _length_at(self, data: bytes, at: int) -> int:
        """Return the length of the longest special token that stands here; 0 is none."""
        return next((n for n in self._lengths if data[at : at + n] in self._texts), 0)

    def _is_whole(self, data: bytes, begin: int, end: int) -> bool:
        """Return whether llama.cpp finds this very token, and nothing reaches beyond it.

        Some tokens take the white space that follows with them.
        """
        if data[end : end + 1].isspace():
            return False
        for at in range(max(0, begin - self._longest + 1), end):
            stop = at + self._length_at(data, at)
            if at < begin < stop or begin < at < end < stop:
                return False
        return True
