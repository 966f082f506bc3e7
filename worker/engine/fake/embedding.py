"""Deterministic vectors without a model: hashes of the tokens, with llama.cpp's checks and faults.

The vectors of an input are a pure function of its tokens, so that mixed-up inputs would show.
`[[fail]]` in an input lets the whole batch fail.
"""

import math
import time
import zlib
from array import array
from collections.abc import Sequence

from protocol.config.config import WorkerConfig
from worker.engine.adapters import Adapters, NoAdapters
from worker.engine.backend import DecodeFailed, EmbeddingPiece
from worker.engine.fake.record import ComputeRecord
from worker.engine.media import Media

FAKE_EMBD = 8
_FAULT = list(b"[[fail]]")


class FakeEmbedder:
    """Implements `worker.engine.backend.Embedder` over plain lists."""

    rank_template = ""
    reads_media = True

    def __init__(self, config: WorkerConfig, n_ctx: int, record: ComputeRecord) -> None:
        self._record = record
        self.pooling = "rank" if config.reranking else config.pooling or "mean"
        self.n_batch = config.n_ubatch or min(config.n_batch, n_ctx)
        self.n_ctx = n_ctx
        self.n_seq = 4
        self.can_split = self.pooling == "last"
        self.n_embd = 1 if self.pooling == "rank" else FAKE_EMBD
        self.adapters: Adapters = NoAdapters()
        self.cells: dict[int, list[int]] = {}
        self.batches: list[tuple[int, ...]] = []
        """How many tokens of each input every batch held, for tests of the sharing out."""
        self._step_s = config.fake_step_ms / 1e3

    def embed(self, pieces: Sequence[EmbeddingPiece]) -> list[bytes]:
        """Hash each input that has come to its end."""
        self._check(pieces)
        self.batches.append(tuple(len(piece.tokens) for piece in pieces))
        time.sleep(self._step_s)
        for piece in pieces:
            self.cells.setdefault(piece.seq, []).extend(piece.tokens)
        self._record.add(sum(len(piece.tokens) for piece in pieces), 0)
        if any(_has_fault(self.cells[piece.seq]) for piece in pieces):
            for piece in pieces:
                self.forget(piece.seq)
            raise DecodeFailed("the fake was asked to fail", fatal=False)
        return [self._answer(piece) if piece.is_last else b"" for piece in pieces]

    def embed_media(self, seq: int, tokens: Sequence[int], media: Media, normalize: int) -> bytes:
        """Hash an input whose media are placeholders."""
        assert media and seq not in self.cells
        self._record.add(len(tokens), 0)
        if self.pooling == "none":
            return b"".join(vector([token], self.n_embd, -1) for token in tokens)
        return vector(tokens, self.n_embd, normalize)

    def forget(self, seq: int) -> None:
        """Drop a sequence."""
        self.cells.pop(seq, None)

    def _check(self, pieces: Sequence[EmbeddingPiece]) -> None:
        assert 0 < sum(len(piece.tokens) for piece in pieces) <= self.n_batch
        assert len({piece.seq for piece in pieces}) == len(pieces) <= self.n_seq
        for piece in pieces:
            n_read = len(self.cells.get(piece.seq, ()))
            assert piece.pos == n_read, f"input {piece.seq} continues at {piece.pos}, not {n_read}"
            assert self.can_split or (piece.is_last and not n_read), "a whole input is needed"

    def _answer(self, piece: EmbeddingPiece) -> bytes:
        tokens = self.cells.pop(piece.seq)
        if self.pooling == "none":
            return b"".join(vector([token], self.n_embd, -1) for token in tokens)
        return vector(tokens, self.n_embd, piece.normalize)


def _has_fault(tokens: Sequence[int]) -> bool:
    n = len(_FAULT)
    return any(list(tokens[i : i + n]) == _FAULT for i in range(len(tokens) - n + 1))


def vector(tokens: Sequence[int], n_embd: int, normalize: int) -> bytes:
    """Hash tokens into `n_embd` numbers between 0 and 1, of length 1 if normalized."""
    data = array("i", tokens).tobytes()
    values = [zlib.crc32(data, i) / 2**32 for i in range(n_embd)]
    norm = math.sqrt(sum(value * value for value in values)) if normalize > 0 else 1.0
    return array("f", [value / norm for value in values]).tobytes()
