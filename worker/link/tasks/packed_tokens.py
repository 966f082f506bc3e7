"""The tokens of a saved slot as llama-server packs them (`server_tokens::serialize`). Pure.

Marker, version, count and tokens; then count and places of the images and sounds, and each of them
as libmtmd writes it, filled up to whole numbers of 32 bits. In the list of tokens each row of a
piece is a `_NULL`. Older servers write the tokens alone.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worker.engine.media import Media, MediaPiece

NOT_A_STATE = "No available space in KV cache or invalid slot save file"
"""llama-server's message about a file that is missing, broken or does not fit."""
INVALID_TOKENS = "Invalid tokens in slot save file"
_NO_PIECE = "Cannot load media chunk from server tokens state"
_NULL, _VERSION = -1, 1
_NUMBER = struct.Struct("<I")

OpenPieces = Callable[[Sequence[bytes]], Sequence[MediaPiece]]
"""Reads what libmtmd wrote; raises `ValueError` for anything else."""


class SlotFileMismatch(Exception):
    """The file cannot be restored; the message says why."""


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """Tokens and pieces as they stand in a file."""

    tokens: Sequence[int]
    places: Sequence[int] = ()
    """Where the rows of each piece begin in `tokens`."""
    pieces: Sequence[bytes] = ()

    def unpack(self, open_pieces: OpenPieces) -> tuple[list[int], dict[int, MediaPiece]]:
        """Return the tokens of a slot, with a placeholder for each row, and the pieces."""
        try:
            opened = open_pieces(self.pieces)
        except ValueError as error:
            raise SlotFileMismatch(_NO_PIECE) from error
        tokens: list[int] = []
        media: dict[int, MediaPiece] = {}
        end = 0
        for place, piece in sorted(zip(self.places, opened, strict=True), key=lambda pair: pair[0]):
            after = place + piece.rows
            is_inside = end <= place < after <= len(self.tokens)
            rows = set(self.tokens[place:after]) if is_inside else set()
            if rows != {_NULL} or not 0 < piece.n_pos <= piece.rows:
                raise SlotFileMismatch(INVALID_TOKENS)
            tokens += self._texts(end, place)
            media[len(tokens)] = piece
            tokens += piece.placeholders
            end = after
        return tokens + self._texts(end, len(self.tokens)), media

    def _texts(self, start: int, end: int) -> list[int]:
        texts = list(self.tokens[start:end])
        if texts and min(texts) < 0:
            raise SlotFileMismatch(INVALID_TOKENS)
        return texts


def pack(tokens: Sequence[int], media: Media) -> bytes:
    """Wrap the tokens of a slot."""
    rows = [max(token, _NULL) for token in tokens]
    places = sorted(media)
    numbers = [_NULL, _VERSION, len(rows), *rows, len(places), *places]
    data = bytearray(struct.pack(f"<{len(numbers)}i", *numbers))
    for start in places:
        data += _NUMBER.pack(len(media[start].saved)) + media[start].saved
    return bytes(data) + bytes(-len(data) % _NUMBER.size)


def read_packed(data: bytes) -> PackedTokens:
    """Read what stands where llama.cpp's own format has the tokens; raises `SlotFileMismatch`."""
    numbers = struct.unpack(f"<{len(data) // 4}i", data)
    if not numbers or numbers[0] != _NULL:
        return PackedTokens(numbers)
    if len(numbers) < 4 or not 0 <= numbers[2] <= len(numbers) - 4:
        raise SlotFileMismatch(NOT_A_STATE)
    if numbers[1] != _VERSION:
        raise SlotFileMismatch("Unsupported server tokens state version")
    end = 3 + numbers[2]
    start = end + 1 + numbers[end]
    if not end < start <= len(numbers):
        raise SlotFileMismatch(NOT_A_STATE)
    places = numbers[end + 1 : start]
    return PackedTokens(numbers[3:end], places, _read_pieces(data[4 * start :], len(places)))


def _read_pieces(data: bytes, n: int) -> list[bytes]:
    pieces: list[bytes] = []
    for _ in range(n):
        size = _NUMBER.unpack_from(data)[0] if len(data) >= _NUMBER.size else 0
        end = _NUMBER.size + size
        if not size or end > len(data):
            raise SlotFileMismatch(NOT_A_STATE)
        pieces.append(data[_NUMBER.size : end])
        data = data[end:]
    if len(data) >= _NUMBER.size:
        raise SlotFileMismatch(NOT_A_STATE)
    return pieces
