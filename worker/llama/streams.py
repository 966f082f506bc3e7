"""A cache for each slot: llama.cpp's streams, without `--kv-unified`.

A stream can be copied whole only, and llama.cpp makes the copies when it decodes the next batch. It
computes rows together only if the numbers of their sequences follow each other; each gap costs a
pass over all weights.
"""

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

import llama_cpp.llama_cpp as lib

from worker.engine.backend import BatchRow
from worker.llama.batch import Batch
from worker.llama.model import LoadedModel

MAX_GAP = 4
"""Maximum sequences between two of a batch that are computed, too. Source: on an H100 a pass over
5 GB of weights takes 4.3 ms, and a sequence of 8,000 tokens 0.75 ms."""
NO_CELLS, INVALID = 1, -1
"""What llama_decode returns."""


def open_streams(loaded: LoadedModel, batch: Batch) -> "Streams | None":
    """Return None where all sequences share one cache."""
    return None if loaded.is_unified else Streams(loaded.context, batch, loaded.n_ctx_slot)


class Streams:
    """Copies and decodes sequences with caches of their own; the engine's thread alone."""

    def __init__(self, context: Any, batch: Batch, n_ctx: int) -> None:
        """`n_ctx` is the number of cells of each."""
        self._context = context
        self._memory = lib.llama_get_memory(context)
        self._batch = batch
        self._n_ctx = n_ctx
        self._unsettled: set[int] = set()
        """Sequences between which the next batch makes copies."""

    def copy(self, source: int, target: int, end: int) -> None:
        """Replace a sequence by the positions of another before `end`, or by all of them if < 0."""
        lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        if end >= 0:
            lib.llama_memory_seq_rm(self._memory, target, end, -1)
        self._unsettled |= {source, target}

    def settle(self, seq: int) -> None:
        """Let copies be made before a sequence is read or overwritten.

        llama.cpp makes them also for a token that finds no cell.
        """
        if seq in self._unsettled:
            end = int(lib.llama_memory_seq_pos_max(self._memory, seq)) + 1
            self.decode([BatchRow(seq, end, (0,), False)])
            lib.llama_memory_seq_rm(self._memory, seq, end, -1)

    def decode(self, rows: Sequence[BatchRow]) -> int:
        """Decode rows in the order of their sequences; return llama.cpp's code."""
        for bridges in (self._bridges(rows), []):
            ordered = sorted([*rows, *bridges], key=attrgetter("seq"))
            self._batch.fill(ordered)
            if ordered != rows:
                self._batch.keep([row.seq for row in rows])
            code = int(lib.llama_decode(self._context, self._batch.raw))
            for row in bridges:
                lib.llama_memory_seq_rm(self._memory, row.seq, row.pos, -1)
            if code != NO_CELLS or not bridges:
                break
        if code != INVALID:
            self._unsettled.clear()
        return code

    def _bridges(self, rows: Sequence[BatchRow]) -> list[BatchRow]:
        """Return a row for each sequence in the small gaps between those of a batch.

        Not between two rows of several tokens: their first tokens would be computed together, in a
        pass of their own, and the others apart all the same.
        """
        found: list[BatchRow] = []
        for before, after in pairwise(sorted(rows, key=attrgetter("seq"))):
            gap = range(before.seq + 1, after.seq)
            is_short = 1 in (len(before.tokens), len(after.tokens))
            if is_short and len(gap) <= MAX_GAP:
                ends = [int(lib.llama_memory_seq_pos_max(self._memory, seq)) + 1 for seq in gap]
                if max(ends, default=0) < self._n_ctx:
                    pairs = zip(gap, ends, strict=True)
                    found += [BatchRow(seq, end, (0,), False) for seq, end in pairs]
        n_tokens = sum(len(row.tokens) for row in rows)
        return found if n_tokens + len(found) <= self._batch.capacity else []
