"""Encodes images and sounds beside the engine's thread, and keeps the latest embeddings.

An encoder takes a GPU 0.1 s and a CPU up to minutes for an image; meanwhile the engine's thread
computes the batches of others. Each is encoded on a thread of its own: OpenMP keeps threads for
each thread that computes, and as long as these are more than cores, none of them waits by spinning
(libgomp's team.c): the engine took 29 ms for a step of 17 after the first image.
"""

import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import llama_cpp.mtmd_cpp as mtmd
import numpy as np

from worker.engine.backend import DecodeFailed
from worker.engine.media import MediaPiece
from worker.llama.media.values import Floats, check_embedding

_KEPT_BYTES = 256 << 20
"""Bytes of embeddings that are kept, the latest ones: one image has 1 to 50 MB with a model of 8B
parameters, and more with a large picture."""


@dataclass(frozen=True, slots=True)
class _Encoding:
    """What a thread works on."""

    piece: MediaPiece
    embedding: "Future[Floats]"
    started_s: float


class MediaEncoder:
    """Owned by the engine's thread; only encoding itself happens on the other one."""

    def __init__(self, context: Any, n_embd: int) -> None:
        """`context` is libmtmd's, which must outlive it; `n_embd` are values of a row."""
        self._context = context
        self._n_embd = n_embd
        self._thread: threading.Thread | None = None
        self._encoding: _Encoding | None = None
        self._known: OrderedDict[str, Floats] = OrderedDict()
        self._failed: tuple[str, Exception | None] = ("", None)
        """The piece that could not be encoded last, and why."""

    @property
    def started_s(self) -> float:
        """When the thread began what it works on (monotonic), or 0."""
        encoding = self._encoding
        return 0.0 if encoding is None or encoding.embedding.done() else encoding.started_s

    def is_ready(self, piece: MediaPiece) -> bool:
        """Return whether a piece can be taken: its embedding, or why there is none."""
        self._collect()
        is_known = piece.key in self._known or piece.handle.embedding is not None
        return is_known or piece.key == self._failed[0]

    def begin(self, piece: MediaPiece) -> None:
        """Begin to encode a piece, unless another one is at work."""
        if self._encoding is None:
            self._start(piece)

    def take(self, piece: MediaPiece) -> Floats:
        """Return the embedding of a piece, float32, a row for each of its cells.

        Its handle keeps it from now on: others that are encoded meanwhile may need its place. One
        that is not ready is encoded first. Raises `DecodeFailed`.
        """
        while not self.is_ready(piece):
            self.begin(piece)
            assert self._encoding is not None
            self._encoding.embedding.exception()  # waits
        key, error = self._failed
        if error is not None and key == piece.key:
            self._failed = ("", None)
            raise error
        if piece.handle.embedding is None:
            self._known.move_to_end(piece.key)
            piece.handle.embedding = self._known[piece.key]
        embedding: Floats = piece.handle.embedding
        return embedding

    def close(self) -> None:
        """Wait until what was begun is encoded."""
        if self._thread is not None:
            self._thread.join()
        self._encoding = None

    def _start(self, piece: MediaPiece) -> None:
        self._encoding = _Encoding(piece, Future(), time.monotonic())
        # A process that ends does not wait for it, as it does not for the engine's thread.
        self._thread = threading.Thread(
            target=self._work, args=(self._encoding,), name="encode-media", daemon=True
        )
        self._thread.start()

    def _collect(self) -> None:
        """Keep what the thread has done, and drop what has not been used for longest."""
        encoding = self._encoding
        if encoding is None or not encoding.embedding.done():
            return
        self._encoding = None
        error = encoding.embedding.exception()
        if isinstance(error, Exception):
            self._failed = encoding.piece.key, error.with_traceback(None)
            return
        self._known[encoding.piece.key] = encoding.embedding.result()
        n_bytes = sum(known.nbytes for known in self._known.values())
        while len(self._known) > 1 and n_bytes > _KEPT_BYTES:
            n_bytes -= self._known.popitem(last=False)[1].nbytes

    def _work(self, encoding: _Encoding) -> None:
        try:
            encoding.embedding.set_result(self._encode(encoding.piece))
        except Exception as error:
            encoding.embedding.set_exception(error)

    def _encode(self, piece: MediaPiece) -> Floats:
        if int(mtmd.mtmd_encode_chunk(self._context, piece.handle.raw)) != 0:
            raise DecodeFailed("encoding media failed", fatal=False)
        output = mtmd.mtmd_get_output_embd(self._context)
        embedding = np.ctypeslib.as_array(output, (piece.rows * self._n_embd,)).copy()
        check_embedding(embedding)
        return embedding
