"""Images and sounds in a prompt, as the engine sees them: runs of placeholder tokens. Pure.

A placeholder is a negative number drawn from the content's hash, one for each position that the
piece takes in the sequence. So a cached prompt and a new one are compared like any others, and the
same image is found again; but a piece is read as a whole, and its placeholders never reach the
vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

_PLACEHOLDERS = 2**30


@dataclass(frozen=True, slots=True)
class MediaPiece:
    """One image or sound at its place in the prompt."""

    n_pos: int
    """Positions that it takes."""
    key: str
    """Names its content: equal keys are equal embeddings."""
    handle: Any = field(default=None, compare=False, repr=False)
    """The backend's own form of it."""


Media = Mapping[int, MediaPiece]
"""Pieces by their first position in the prompt."""


def placeholders(key: str, n_pos: int) -> list[int]:
    """Return the negative numbers that stand for a piece."""
    start = int.from_bytes(sha256(key.encode()).digest()[:8], "little")
    return [-1 - (start + i) % _PLACEHOLDERS for i in range(n_pos)]


def whole_pieces(media: Media, n: int) -> int:
    """Cut a count of reusable tokens so that no piece is kept in part."""
    for start, piece in media.items():
        if start < n < start + piece.n_pos:
            return start
    return n


def text_until(media: Media, start: int, n: int) -> int:
    """Cut a chunk of prompt tokens at the next piece; 0 if a piece begins right here."""
    ahead = [place for place in media if place >= start]
    return min(n, min(ahead) - start) if ahead else n


def without_placeholders(tokens: Sequence[int]) -> list[int]:
    """Return the tokens that the vocabulary knows."""
    return [token for token in tokens if token >= 0]
