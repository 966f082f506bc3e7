"""One `llama_batch` over numpy memory: filled by slices, never allocated or freed again."""

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np

from worker.engine.backend import BatchRow


class Batch:
    """Room for `capacity` tokens, each belonging to one sequence."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._n_seq = np.ones(capacity, np.int32)
        self._seq = np.zeros(capacity, np.int32)
        self._logits = np.zeros(capacity, np.int8)
        self._count = np.arange(capacity, dtype=np.int32)
        # Numbers are set one by one through views: converting a list by numpy is slower here.
        self._tokens, self._poss = self._token.data, self._pos.data
        self._seqs, self._wanted = self._seq.data, self._logits.data
        # llama_batch wants an array of pointers to sequence ids; all point into one array.
        self._seq_rows = (self._seq.ctypes.data + 4 * np.arange(capacity)).astype(np.uint64)
        self.raw = lib.llama_batch(
            0,
            pointer(self._token, ctypes.c_int32),
            None,
            pointer(self._pos, ctypes.c_int32),
            pointer(self._n_seq, ctypes.c_int32),
            ctypes.cast(self._seq_rows.ctypes.data, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            pointer(self._logits, ctypes.c_int8),
        )
        self._has_all = False
        """Whether every position has an output."""
        self.last: list[int] = []
        """Position in the batch of each row's last token: where its logits are found."""
        self.first: list[int] = []
        """The same of each row's first token."""

    def fill(self, rows: Sequence[BatchRow]) -> None:
        """Write the rows one after the other."""
        n_tokens = sum([len(row.tokens) for row in rows])
        assert n_tokens <= self.capacity
        if n_tokens == len(rows):
            self._fill_singles(rows)
            return
        i, first, last, self._has_all = 0, [], [], False
        self._logits[: self.raw.n_tokens] = 0
        for row in rows:
            n = len(row.tokens)
            if n == 1:
                self._token[i], self._pos[i], self._seq[i] = row.tokens[0], row.pos, row.seq
            else:
                self._token[i : i + n] = row.tokens
                self._pos[i : i + n] = self._count[:n] + row.pos
                self._seq[i : i + n] = row.seq
            first.append(i)
            if row.is_draft or row.is_probed:
                self._logits[i : i + n] = True
            i += n
            self._logits[i - 1] = row.wants_logits or row.is_probed
            last.append(i - 1)
        self._logits[i:] = 0
        self.raw.n_tokens = i
        self.first, self.last = first, last

    def keep(self, sequences: Sequence[int]) -> None:
        """Number only the rows of these sequences, in this order; each has one row."""
        places = {self._seqs[last]: i for i, last in enumerate(self.last)}
        kept = [places[seq] for seq in sequences]
        self.first, self.last = ([of[i] for i in kept] for of in (self.first, self.last))

    def _fill_singles(self, rows: Sequence[BatchRow]) -> None:
        """Write rows of one token each, the most frequent case."""
        n, before = len(rows), int(self.raw.n_tokens)
        if before > n:
            self._logits[n:before] = 0
        for i, row in enumerate(rows):
            self._tokens[i], self._poss[i], self._seqs[i] = row.tokens[0], row.pos, row.seq
            self._wanted[i] = row.wants_logits or row.is_probed
        self.raw.n_tokens = n
        self.first = self.last = list(range(n))
        self._has_all = all(self._wanted[:n])

    def output(self, index: int) -> int:
        """Return which of the batch's outputs belongs to a position."""
        return index if self._has_all else int(np.count_nonzero(self._logits[:index]))

    @property
    def n_outputs(self) -> int:
        """Positions that have an output."""
        return self.output(self.raw.n_tokens)

    def want_all(self) -> None:
        """Request the output of every token, as embeddings need."""
        self._logits[: self.raw.n_tokens] = 1
        self._has_all = True


def pointer(array: "np.ndarray[Any, Any]", kind: Any) -> Any:
    """Return ctypes' pointer to the values of an array, which must outlive it."""
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
