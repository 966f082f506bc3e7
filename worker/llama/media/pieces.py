"""Chunks of libmtmd as pieces of a prompt, and pieces as saved slots have them; for any thread."""

import ctypes
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import llama_cpp.mtmd_cpp as mtmd

from worker.engine.media import MediaPiece
from worker.llama.media.values import Floats

TEXT = 0
"""Type of a chunk of tokens."""


class MediaChunk:
    """Owns a copy of libmtmd's chunk; freed with the last task that refers to it."""

    def __init__(self, chunk: Any) -> None:
        self.raw = mtmd.mtmd_input_chunk_copy(chunk)
        self.embedding: Floats | None = None
        """What the encoder made of it, from then on until all of its rows are read."""
        self._free = weakref.finalize(self, mtmd.mtmd_input_chunk_free, self.raw)


def read_piece(context: Any, chunk: Any, seen: Counter[str]) -> MediaPiece:
    """Name a chunk by its content; a large image becomes several chunks, told apart by a count."""
    return replace(
        _known(chunk, seen, _saved(chunk)),
        handle=MediaChunk(chunk),
        is_undivided=bool(mtmd.mtmd_decode_use_non_causal(context, chunk)),
    )


def open_saved(saved: Sequence[bytes]) -> list[MediaPiece]:
    """Read the pieces of a prompt, whose contents were not saved; raises `ValueError`."""
    seen: Counter[str] = Counter()
    pieces: list[MediaPiece] = []
    for data in saved:
        chunk = mtmd.mtmd_input_chunk_load(data, len(data))
        if not chunk:
            raise ValueError("libmtmd cannot read it")
        try:
            if int(mtmd.mtmd_input_chunk_get_type(chunk)) == TEXT:
                raise ValueError("it is a text")
            pieces.append(_known(chunk, seen, data))
        finally:
            mtmd.mtmd_input_chunk_free(chunk)
    return pieces


def _known(chunk: Any, seen: Counter[str], saved: bytes) -> MediaPiece:
    name = (mtmd.mtmd_input_chunk_get_id(chunk) or b"").decode(errors="replace")
    number = seen[name]
    seen[name] += 1
    return MediaPiece(
        int(mtmd.mtmd_input_chunk_get_n_pos(chunk)),
        f"{name}:{number}",
        n_rows=int(mtmd.mtmd_input_chunk_get_n_tokens(chunk)),
        saved=saved,
    )


def _saved(chunk: Any) -> bytes:
    """Return what libmtmd writes of a chunk: its shape and name; nothing if it cannot."""
    size = ctypes.c_size_t(0)
    if mtmd.mtmd_input_chunk_save(chunk, None, 0, ctypes.byref(size)) != 0:
        return b""
    buffer = (ctypes.c_char * size.value)()
    code = mtmd.mtmd_input_chunk_save(chunk, buffer, size.value, ctypes.byref(size))
    return bytes(buffer) if code == 0 else b""
