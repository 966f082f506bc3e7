"""A text in pieces that one call of llama.cpp's tokenizer can take: bounded in time and in stack.

Some pre-tokenizers are a `std::regex`, which recurses once for each character of a match (some 300
bytes of stack) and looks at runs of digits once for each digit. So runs are cut that no real text
has, and long texts where no token of any vocabulary crosses: between two lines, or before a space.
"""

from collections.abc import Iterator

import numpy as np

from worker.llama.special_texts import SpecialTexts

MAX_PIECE = 256 * 1024
"""Bytes; takes a slow pre-tokenizer half a second."""
MAX_RUN = 48 * 1024
MAX_DIGITS = 1536
"""A multiple of three, as most vocabularies count digits."""

_NONE = SpecialTexts(())

_LETTER, _DIGIT, _SPACE, _OTHER = range(4)


def _classes() -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    table = np.full(256, _OTHER, np.uint8)
    for byte in range(256):
        char = chr(byte)
        if byte >= 128 or char.isalpha():
            table[byte] = _LETTER
        elif char.isdigit():
            table[byte] = _DIGIT
        elif char.isspace():
            table[byte] = _SPACE
    return table


_CLASS_OF = _classes()
_LIMITS = np.array([MAX_RUN, MAX_DIGITS, MAX_RUN, MAX_RUN])


def split(
    data: bytes, *, adds_space: bool, has_regex: bool, special: SpecialTexts = _NONE
) -> Iterator[bytes]:
    """Cut the bytes of a text into pieces.

    `adds_space`: the tokenizer puts a space before what it is given, so a cut is best made there.
    `has_regex`: runs count; otherwise only the length does. `special` are the tokens that are
    looked for.
    """
    start = 0
    while start < len(data):
        end = min(len(data), start + MAX_PIECE)
        if has_regex:
            end = _before_long_run(data, start, end)
        if end == start + MAX_PIECE and end < len(data):
            end = _soft_cut(data, start, end, adds_space=adds_space)
        end = special.cut(data, start, _whole_characters(data, start, end))
        yield data[start:end]
        start = end


def _before_long_run(data: bytes, start: int, end: int) -> int:
    """Return where to cut the first run that is too long; the end, if no run is."""
    kinds = _CLASS_OF[np.frombuffer(data, np.uint8, end - start, start)]
    last = np.append(np.flatnonzero(kinds[1:] != kinds[:-1]), len(kinds) - 1)
    lengths = np.diff(last, prepend=-1)
    limits = _LIMITS[kinds[last]]
    too_long = np.flatnonzero(lengths > limits)
    if not len(too_long):
        return end
    first = int(too_long[0])
    return start + int(last[first] - lengths[first]) + 1 + int(limits[first])


def _soft_cut(data: bytes, start: int, end: int, *, adds_space: bool) -> int:
    """Find the last place in the second half where a cut changes no token."""
    half = start + (end - start) // 2
    if not adds_space:
        at = data.rfind(b"\n", half, end)
        while at > half and (data[at - 1 : at].isspace() or data[at + 1 : at + 2].isspace()):
            at = data.rfind(b"\n", half, at)
        if at > half:
            return at + 1
    at = data.rfind(b" ", half, end)
    while at > half and (data[at - 1 : at].isspace() or data[at + 1 : at + 2].isspace()):
        at = data.rfind(b" ", half, at)
    return at if at > half else end


def _whole_characters(data: bytes, start: int, end: int) -> int:
    """Move an end back to where a character of UTF-8 begins."""
    while end < len(data) and end > start + 1 and data[end] & 0xC0 == 0x80:
        end -= 1
    return end
