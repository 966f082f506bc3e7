"""Embeddings: a second context on the same weights, so that generation never notices.

All inputs of a batch are sequences of one physical batch: llama.cpp pools within such a batch, and
aborts if an encoder's input needs two. What it would abort on is refused before it comes here.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np

from protocol.config import POOLINGS, WorkerConfig
from protocol.errors import ConfigError
from worker.engine.adapters import Adapters
from worker.engine.backend import DecodeFailed, Piece, Row
from worker.llama import library
from worker.llama.adapters import apply_control_vectors
from worker.llama.batch import Batch
from worker.llama.model import Loaded, context_params

Vector = np.ndarray[tuple[int], np.dtype[np.float32]]

_MAX_SEQUENCES = 64
_ATTENTION = {"": -1, "causal": 0, "non-causal": 1}
_INT16_RANGE = 32760.0
"""The largest value of a vector with normalization 0 (llama.cpp common_embd_normalize)."""


class LlamaEmbedder:
    """Owns the second context; implements `worker.engine.backend.Embedder`."""

    def __init__(self, model: Any, context: Any, n_ctx: int, adapters: Adapters) -> None:
        self._context = context
        self.adapters = adapters
        self._memory = lib.llama_get_memory(context)
        self.pooling = POOLINGS[int(lib.llama_pooling_type(context))]
        self.n_ctx = n_ctx
        self.n_batch = int(lib.llama_n_ubatch(context))
        # A recurrent model reads a batch in parts of equal length: only one input stays whole.
        mixes = not (lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model))
        self.n_seq = int(lib.llama_n_seq_max(context)) if mixes else 1
        self.can_split = _can_split(
            self.pooling,
            is_causal=bool(lib.llama_get_causal_attn(context)),
            has_memory=bool(self._memory),
        )
        is_rank = self.pooling == "rank"
        size = lib.llama_model_n_cls_out(model) if is_rank else lib.llama_model_n_embd_out(model)
        self.n_embd = max(1, int(size))
        template = lib.llama_model_chat_template(model, b"rerank")
        self.rank_template = template.decode(errors="replace") if template else ""
        self._batch = Batch(self.n_batch)

    def embed(self, pieces: Sequence[Piece]) -> list[bytes]:
        """Compute one batch; return the vectors of each last piece."""
        self._batch.fill([Row(one.seq, one.pos, one.tokens, True) for one in pieces])
        self._batch.want_all()
        library.forget_log()
        code = int(lib.llama_decode(self._context, self._batch.raw))
        try:
            if code != 0:
                reason = library.last_words()
                raise DecodeFailed(f"llama_decode returned {code}: {reason}", fatal=code < -1)
            return [
                self._vectors(one, first) if one.is_last else b""
                for one, first in zip(pieces, self._batch.first, strict=True)
            ]
        finally:
            for one in pieces:
                if one.is_last or code != 0:
                    self.forget(one.seq)

    def forget(self, seq: int) -> None:
        """Drop a sequence; an encoder has no memory to drop it from."""
        if self._memory:
            lib.llama_memory_seq_rm(self._memory, seq, -1, -1)

    def close(self) -> None:
        """Free the context; the model must still be there."""
        lib.llama_free(self._context)

    def _vectors(self, piece: Piece, first: int) -> bytes:
        """Copy the vectors out of llama.cpp's memory: they are gone with the next batch."""
        if self.pooling != "none":
            pointer = lib.llama_get_embeddings_seq(self._context, piece.seq)
            return normalized(self._look(pointer), piece.normalize).tobytes()
        rows = range(first, first + len(piece.tokens))
        pointers = (lib.llama_get_embeddings_ith(self._context, row) for row in rows)
        return b"".join(self._look(pointer).tobytes() for pointer in pointers)

    def _look(self, pointer: Any) -> Vector:
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        if address is None:
            raise DecodeFailed("llama.cpp made no embedding", fatal=False)
        raw = (ctypes.c_float * self.n_embd).from_address(address)
        return np.frombuffer(memoryview(raw), np.float32)


def open_embedder(loaded: Loaded, config: WorkerConfig) -> LlamaEmbedder | None:
    """Make the context for embeddings if they are configured; raises `ConfigError`."""
    name = Path(config.model).name
    if not (config.embeddings or config.reranking):
        if not lib.llama_get_memory(loaded.context):
            raise ConfigError(f"{name} is an encoder, made for embeddings: say --embeddings")
        return None
    n_train = int(lib.llama_model_n_ctx_train(loaded.model))
    n_ctx = min(loaded.n_ctx_slot, n_train or loaded.n_ctx_slot)
    library.forget_log()
    context = lib.llama_init_from_model(loaded.model, _params(loaded, config, n_ctx))
    if not context:
        said = library.last_words()
        raise ConfigError(f"cannot make a context for embeddings of {name}: {said}")
    apply_control_vectors(loaded.model, context, config)
    return LlamaEmbedder(loaded.model, context, n_ctx, loaded.adapters.on(context))


def _params(loaded: Loaded, config: WorkerConfig, n_ctx: int) -> Any:
    params = context_params(config)
    pooling = "rank" if config.reranking else config.pooling
    n_batch = config.n_ubatch
    params.embeddings = True
    params.pooling_type = POOLINGS.index(pooling) if pooling else -1
    params.attention_type = _ATTENTION[config.attention_type]
    params.n_seq_max = min(_MAX_SEQUENCES, n_batch)
    params.n_batch = params.n_ubatch = n_batch
    # Room for a batch, and where an input may come in pieces for one such input beside it.
    params.n_ctx = n_batch + (n_ctx if _may_split(loaded.model, config, pooling) else 0)
    return params


def _may_split(model: Any, config: WorkerConfig, pooling: str) -> bool:
    """Guess from the file what only the finished context tells for certain."""
    arch = _meta(model, "general.architecture")
    stored = _meta(model, f"{arch}.pooling_type")
    is_causal = config.attention_type != "non-causal"
    return _can_split(
        pooling or (POOLINGS[int(stored)] if stored in ("0", "1", "2", "3", "4") else "none"),
        is_causal=is_causal and _meta(model, f"{arch}.attention.causal") != "false",
        has_memory=True,
    )


def _can_split(pooling: str, *, is_causal: bool, has_memory: bool) -> bool:
    """Tell whether only the last token's state counts and the memory keeps the others'."""
    return has_memory and (pooling == "last" or (pooling == "rank" and is_causal))


def _meta(model: Any, key: str) -> str:
    buffer = ctypes.create_string_buffer(256)
    n = lib.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode(errors="replace") if n >= 0 else ""


def normalized(vector: Vector, kind: int) -> Vector:
    """Scale a vector: -1 not at all, 0 to int16's range, else by its p-norm (2 is Euclidean)."""
    if kind < 0:
        return vector
    # Without the first division a high power of a small number would be 0.
    largest = float(np.max(np.abs(vector), initial=0.0))
    if not largest > 0.0:
        return np.zeros_like(vector)
    if kind == 0:
        return (vector * np.float32(_INT16_RANGE / largest)).astype(np.float32)
    norm = float(np.sum(np.abs(vector.astype(np.float64) / largest) ** kind)) ** (1 / kind)
    return (vector * np.float32(1 / (norm * largest))).astype(np.float32)
