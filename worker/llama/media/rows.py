"""Rows of an image's or a sound's embedding as a `llama_batch`, at the positions they belong to."""

import ctypes
from typing import Any

import llama_cpp.llama_cpp as lib
import llama_cpp.mtmd_cpp as mtmd
import numpy as np

from worker.llama.batch import pointer
from worker.llama.media.values import Floats

Positions = np.ndarray[Any, np.dtype[np.int32]]

_N_SECTIONS = 4
"""Positions of a row with M-RoPE: in time, from above, from the left, and one that is unused."""


class EmbeddingBatch:
    """Owns the memory of the batch, which must live until it is decoded."""

    def __init__(self, embedding: Floats, positions: Positions, seq: int) -> None:
        """`embedding` is float32 of [rows, values], `positions` int32 of [sections, rows]."""
        n = len(embedding)
        self._embedding = np.ascontiguousarray(embedding)
        self._positions = np.ascontiguousarray(positions)
        self._n_seq = np.ones(n, np.int32)
        self._seq = np.full(1, seq, np.int32)
        self._seq_rows = np.full(n, self._seq.ctypes.data, np.uint64)
        self._logits = np.zeros(n, np.int8)
        self.raw = lib.llama_batch(
            n,
            None,
            pointer(self._embedding, ctypes.c_float),
            pointer(self._positions, ctypes.c_int32),
            pointer(self._n_seq, ctypes.c_int32),
            pointer(self._seq_rows, ctypes.POINTER(ctypes.c_int32)),
            pointer(self._logits, ctypes.c_int8),
        )


def row_positions(context: Any, chunk: Any, start: int, rows: range) -> Positions:
    """Return the positions of rows of a chunk that begins at `start`: int32, [sections, rows].

    As `mtmd_helper_decode_image_chunk` sets them: one section without M-RoPE.
    """
    in_order = np.arange(start + rows.start, start + rows.stop, dtype=np.int32)
    if not mtmd.mtmd_decode_use_mrope(context):
        return in_order[None]
    image = mtmd.mtmd_input_chunk_get_tokens_image(chunk)
    if not image:  # a sound
        return np.tile(in_order, (_N_SECTIONS, 1))
    found = (mtmd.mtmd_decoder_pos * int(mtmd.mtmd_input_chunk_get_n_tokens(chunk)))()
    mtmd.mtmd_helper_image_get_decoder_pos(image, start, found)
    values = np.frombuffer(found, np.int32).reshape(-1, 4)[rows.start : rows.stop]  # t, x, y, z
    return values[:, [0, 2, 1, 3]].T
