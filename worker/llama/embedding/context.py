"""Embeddings: a second context on the same weights, independent of generation.

All inputs of a batch are sequences of one physical batch: llama.cpp pools within such a batch, and
aborts if an encoder's input needs two. Inputs that it would abort on are refused before.
"""

import ctypes
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np

from protocol.config.config import WorkerConfig
from protocol.config.worker_config import POOLINGS
from protocol.errors import ConfigError, InvalidRequest
from worker.engine.adapters import Adapters
from worker.engine.backend import BatchRow, DecodeFailed, EmbeddingPiece
from worker.engine.cache.sequences import MAX_SEQUENCES
from worker.engine.media import Media, MediaPiece, text_until
from worker.files.gguf_header import tensor_names
from worker.llama import library
from worker.llama.adapters import apply_control_vectors
from worker.llama.batch import Batch
from worker.llama.embedding.headless import POOLS, GraphWatch, Rows, Vector, watch_for
from worker.llama.media.reader import MediaReader
from worker.llama.model import (
    LoadedModel,
    architecture,
    can_generate,
    context_params,
    is_recurrent,
    metadata,
    trained_context,
)

logger = logging.getLogger(__name__)

_HEADS = {"cls.weight", "cls.output.weight"}
"""Of a ranking head; llama.cpp's `build_pooling` has no other tensor that makes a score."""
_ATTENTION = {"": -1, "causal": 0, "non-causal": 1}
_INT16_RANGE = 32760.0
"""The largest value of a vector with normalization 0 (llama.cpp common_embd_normalize)."""


@dataclass(frozen=True, slots=True)
class EmbeddingContext:
    """A context for embeddings."""

    context: Any
    pooling: str
    """How an input's rows are pooled, by llama.cpp or, without the head, here."""
    watch: GraphWatch | None = None


class LlamaEmbedder:
    """Owns the second context; implements `worker.engine.backend.Embedder`."""

    def __init__(
        self,
        model: Any,
        opened: EmbeddingContext,
        n_ctx: int,
        adapters: Adapters,
        media: MediaReader | None = None,
    ) -> None:
        self._media = media
        # An input can span several batches only if its rows are pooled here.
        self.reads_media = media is not None and opened.watch is not None
        self._context = context = opened.context
        self._watch = opened.watch
        """Ends graphs before the head; rows are then pooled here."""
        self.adapters = adapters
        self._memory = lib.llama_get_memory(context)
        self.pooling = opened.pooling
        self.n_ctx = n_ctx
        self.n_batch = int(lib.llama_n_ubatch(context))
        # A recurrent model reads a batch in parts of equal length, so it takes one input at a time.
        self.n_seq = 1 if is_recurrent(model) else int(lib.llama_n_seq_max(context))
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

    def embed(self, pieces: Sequence[EmbeddingPiece]) -> list[bytes]:
        """Compute one batch; return the vectors of each last piece."""
        self._batch.fill([BatchRow(piece.seq, piece.pos, piece.tokens, True) for piece in pieces])
        self._batch.want_all()
        if self._watch:
            self._watch.begin()
        library.forget_log()
        code = int(lib.llama_decode(self._context, self._batch.raw))
        try:
            if code != 0:
                reason = library.last_warnings()
                raise DecodeFailed(f"llama_decode returned {code}: {reason}", fatal=code < -1)
            return [
                self._vectors(piece, first) if piece.is_last else b""
                for piece, first in zip(pieces, self._batch.first, strict=True)
            ]
        finally:
            for piece in pieces:
                if piece.is_last or code != 0:
                    self.forget(piece.seq)

    def embed_media(self, seq: int, tokens: Sequence[int], media: Media, normalize: int) -> bytes:
        """Compute texts and pieces one after the other, and pool all of their rows."""
        found: list[Rows] = []
        at = pos = 0
        try:
            while at < len(tokens):
                if piece := media.get(at):
                    found.append(self._media_rows(seq, pos, piece))
                    at += piece.rows
                    pos += piece.n_pos
                    continue
                n = text_until(media, at, min(self.n_batch, len(tokens) - at))
                part = EmbeddingPiece(seq, pos, tokens[at : at + n], is_last=False)
                self.embed([part])
                found.append(self._rows(0, n).copy())
                at += n
                pos += n
        finally:
            self.forget(seq)
        rows = np.concatenate(found)
        if self.pooling == "none":
            return _written(rows)
        return _written(normalized(POOLS[self.pooling](rows), normalize))

    def _media_rows(self, seq: int, pos: int, piece: MediaPiece) -> Rows:
        assert self._media is not None and self._watch is not None
        n = piece.rows
        if n > self.n_batch:
            message = f"an image has {n} tokens, more than --ubatch-size {self.n_batch} allows"
            raise InvalidRequest(message)
        self._watch.begin()
        self._media.decode(piece, range(n), self._context, seq, pos)
        return self._rows(0, n).copy()

    def forget(self, seq: int) -> None:
        """Remove a sequence; nothing to do for an encoder, which has no cache."""
        if self._memory:
            lib.llama_memory_seq_rm(self._memory, seq, -1, -1)

    def close(self) -> None:
        """Free the context, before the model is freed."""
        lib.llama_free(self._context)

    def _vectors(self, piece: EmbeddingPiece, first: int) -> bytes:
        """Copy the vectors out of llama.cpp's memory, which the next batch overwrites."""
        if self.pooling == "none":
            return _written(self._rows(first, len(piece.tokens)))
        if self._watch:
            vector = POOLS[self.pooling](self._rows(first, len(piece.tokens)))
        else:
            vector = self._look(lib.llama_get_embeddings_seq(self._context, piece.seq), 1)[0]
        return _written(normalized(vector, piece.normalize))

    def _rows(self, first: int, n: int) -> Rows:
        """Return a view of the vectors of consecutive tokens of the batch."""
        return self._look(lib.llama_get_embeddings_ith(self._context, first), n)

    def _look(self, pointer: Any, n: int) -> Rows:
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        if address is None:
            raise DecodeFailed("llama.cpp made no embedding", fatal=False)
        raw = (ctypes.c_float * (n * self.n_embd)).from_address(address)
        return np.frombuffer(memoryview(raw), np.float32).reshape(n, self.n_embd)


def open_embedder(
    loaded: LoadedModel, config: WorkerConfig, media: MediaReader | None = None
) -> LlamaEmbedder | None:
    """Make the context for embeddings if they are configured; raises `ConfigError`."""
    name = Path(config.model).name
    if not (config.embeddings or config.reranking):
        if not can_generate(loaded.model, loaded.context):
            raise ConfigError(_without_text(name, loaded.model))
        return None
    if _has_wider_rows(loaded) and _pooling(loaded.model, config) != "rank":
        raise ConfigError(f"llama.cpp makes no embeddings of {name}: only reranking is possible")
    n_train = trained_context(loaded.model)
    n_ctx = min(loaded.n_ctx_slot, n_train or loaded.n_ctx_slot)
    opened = _opened(loaded, config, n_ctx)
    if opened.pooling == "rank":
        _warn_without_head(Path(config.model))
    apply_control_vectors(loaded.model, opened.context, config)
    adapters = loaded.adapters.on(opened.context)
    return LlamaEmbedder(loaded.model, opened, n_ctx, adapters, media)


def _warn_without_head(path: Path) -> None:
    names = tensor_names(path)
    if names and not names & _HEADS:
        logger.warning(
            "no ranking head",
            extra={
                "file": path.name,
                "cause": "the model was not made for reranking, and its scores mean nothing",
                "hint": "give a reranker, or leave --reranking and --pooling rank out",
            },
        )


def _has_wider_rows(loaded: LoadedModel) -> bool:
    """Whether llama.cpp would read more than a row has, and abort: DeepSeek V4, Qwen 4.

    A row of them has several streams for their own draft heads, which an embedding has not.
    """
    is_wider = lib.llama_model_n_embd_out(loaded.model) > lib.llama_model_n_embd(loaded.model)
    return is_wider and can_generate(loaded.model, loaded.context)


def _without_text(name: str, model: Any) -> str:
    if lib.llama_model_is_diffusion(model):
        return f"{name} is a diffusion model: their way of generating text is not served"
    return f"{name} is an encoder, made for embeddings: give --embeddings"


def _opened(loaded: LoadedModel, config: WorkerConfig, n_ctx: int) -> EmbeddingContext:
    """Make the context, without the head if there is one and the rows can be pooled here."""
    context = _context(loaded, config, _params(loaded, config, n_ctx))
    # The model's own pooling is known only from a context.
    pooling = POOLINGS[int(lib.llama_pooling_type(context))]
    if pooling != "none" and pooling not in POOLS:
        return EmbeddingContext(context, pooling)
    watch = watch_for(loaded.model, lambda: _params(loaded, config, n_ctx))
    if watch is None:
        return EmbeddingContext(context, pooling)
    lib.llama_free(context)
    params = watch.on(_params(loaded, config, n_ctx))
    return EmbeddingContext(_context(loaded, config, params), pooling, watch)


def _context(loaded: LoadedModel, config: WorkerConfig, params: Any) -> Any:
    library.forget_log()
    context = lib.llama_init_from_model(loaded.model, params)
    if not context:
        name, reason = Path(config.model).name, library.last_warnings()
        raise ConfigError(f"cannot make a context for embeddings of {name}: {reason}")
    return context


def _params(loaded: LoadedModel, config: WorkerConfig, n_ctx: int) -> Any:
    params = context_params(config)
    pooling = _pooling(loaded.model, config)
    n_batch = config.n_ubatch or min(config.n_batch, n_ctx)
    params.embeddings = True
    params.pooling_type = POOLINGS.index(pooling) if pooling else -1
    params.attention_type = _ATTENTION[config.attention_type]
    params.n_seq_max = _count_sequences(n_batch)
    params.n_batch = params.n_ubatch = n_batch
    # Room for a batch, and where an input may come in pieces for one such input beside it.
    in_pieces = bool(config.mmproj) or _may_split(loaded.model, config, pooling)
    params.n_ctx = n_batch + (n_ctx if in_pieces else 0)
    return params


def _count_sequences(n_batch: int) -> int:
    """Return the largest divisor of a batch that is no more than `MAX_SEQUENCES`.

    llama.cpp aborts when it reserves the graph of a mean over a batch that is no multiple.
    """
    return next(n for n in range(min(MAX_SEQUENCES, n_batch), 0, -1) if n_batch % n == 0)


def _pooling(model: Any, config: WorkerConfig) -> str:
    """Return the configured pooling, or empty for the model's own; mean if it has none."""
    if config.reranking:
        return "rank"
    return config.pooling or ("" if _stored_pooling(model) != "none" else "mean")


def _stored_pooling(model: Any) -> str:
    stored = metadata(model, f"{architecture(model)}.pooling_type")
    return POOLINGS[int(stored)] if stored in ("0", "1", "2", "3", "4") else "none"


def _may_split(model: Any, config: WorkerConfig, pooling: str) -> bool:
    """Estimate from the file; only the context gives the certain answer."""
    causal = metadata(model, f"{architecture(model)}.attention.causal")
    is_causal = config.attention_type != "non-causal"
    return _can_split(
        pooling or _stored_pooling(model),
        is_causal=is_causal and causal != "false",
        has_memory=True,
    )


def _can_split(pooling: str, *, is_causal: bool, has_memory: bool) -> bool:
    """Return whether inputs can be split: pooling by the last token, with a causal cache."""
    return has_memory and (pooling == "last" or (pooling == "rank" and is_causal))


def _written(numbers: Rows | Vector) -> bytes:
    return numbers.tobytes() if np.isfinite(numbers).all() else b""


def normalized(vector: Vector, kind: int) -> Vector:
    """Scale a vector: -1 not at all, 0 to int16's range, else by its p-norm (2 is Euclidean).

    One with what is not a number stays as it is.
    """
    # Without the first division a high power of a small number would be 0.
    largest = float(np.max(np.abs(vector), initial=0.0))
    if kind < 0 or largest == 0.0 or not math.isfinite(largest):
        return vector
    if kind == 0:
        return (vector * np.float32(_INT16_RANGE / largest)).astype(np.float32)
    norm = float(np.sum(np.abs(vector.astype(np.float64) / largest) ** kind)) ** (1 / kind)
    return (vector * np.float32(1 / (norm * largest))).astype(np.float32)
