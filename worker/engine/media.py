"""Images and sounds in a prompt as runs of placeholder tokens. Pure.

A placeholder is a negative number from the hash of the content, one for each cell that the piece
takes. So prompts with media are compared, counted and cached like any others. A piece is cached as
a whole, and its placeholders never reach the vocabulary. With M-RoPE an image takes fewer positions
than cells: placeholders of another range stand for those that share one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from protocol.errors import InvalidRequest

_PLACEHOLDERS = 2**30
"""Numbers of each kind of placeholder: half of the negative ones of 32 bits."""


@dataclass(frozen=True, slots=True)
class MediaPiece:
    """One image or sound at its place in the prompt."""

    n_pos: int
    """Positions that it takes."""
    key: str
    """Identifies the content: equal keys mean equal embeddings."""
    handle: Any = field(default=None, compare=False, repr=False)
    """The backend's representation."""
    n_rows: int = 0
    """Rows that it takes in a batch, where these are more than its positions."""
    is_undivided: bool = field(default=False, compare=False)
    """Whether all rows must be read in one batch, because each attends to all others."""
    saved: bytes = field(default=b"", compare=False, repr=False)
    """What a saved slot has of it: enough to know it again, without its content."""

    @property
    def rows(self) -> int:
        """Rows that it takes in a batch, which are its cells."""
        return self.n_rows or self.n_pos

    @property
    def placeholders(self) -> list[int]:
        """Return the numbers that stand for it in a prompt."""
        return placeholders(self.key, self.n_pos, self.rows)


class MediumRefused(InvalidRequest):
    """One of the images and sounds of a prompt cannot be read; which field has it is not known."""

    def __init__(self, message: str, place: int) -> None:
        """`place` is its index among them."""
        super().__init__(message)
        self.place = place


Media = Mapping[int, MediaPiece]
"""Pieces by their first position in the prompt."""


def placeholders(key: str, n_pos: int, n_rows: int = 0) -> list[int]:
    """Return the negative numbers that stand for a piece of `n_rows`, or as many as positions."""
    start = int.from_bytes(sha256(key.encode()).digest()[:8], "little")
    found = [-1 - (start + i) % _PLACEHOLDERS for i in range(max(n_pos, n_rows))]
    return [*found[:n_pos], *(number - _PLACEHOLDERS for number in found[n_pos:])]


def count_shared(tokens: Sequence[int]) -> int:
    """Count the tokens that share a position with the one before."""
    if min(tokens, default=0) >= -_PLACEHOLDERS:
        return 0
    return sum(token < -_PLACEHOLDERS for token in tokens)


def count_positions(tokens: Sequence[int]) -> int:
    """Return how many positions tokens take."""
    return len(tokens) - count_shared(tokens)


def whole_pieces(media: Media, n: int) -> int:
    """Reduce a count of reusable tokens so that no piece is kept in part."""
    for start, piece in media.items():
        if start < n < start + piece.rows:
            return start
    return n


def are_whole(media: Media, n: int) -> bool:
    """Return whether no image ends after the first `n` tokens that begins among them."""
    return whole_pieces(media, n) == n


def piece_at(media: Media, n: int) -> tuple[int, MediaPiece] | None:
    """Return the piece that has the token number `n`, behind its first position."""
    for start, piece in media.items():
        if start <= n < start + piece.rows:
            return start, piece
    return None


def text_until(media: Media, start: int, n: int) -> int:
    """Return how many of `n` tokens come before the next piece; 0 if a piece begins at `start`."""
    ahead = [place for place in media if place >= start]
    return min(n, min(ahead) - start) if ahead else n


def without_handles(media: Media, n: int) -> Media:
    """Return the pieces among the first `n` tokens, as a slot keeps them after its task."""
    read = {start: piece for start, piece in media.items() if start < n}
    return {start: replace(piece, handle=None) for start, piece in read.items()}


def without_placeholders(tokens: Sequence[int]) -> list[int]:
    """Return the tokens without placeholders."""
    return [token for token in tokens if token >= 0]
