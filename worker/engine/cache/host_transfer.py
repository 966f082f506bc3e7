"""Copies sequences to the host's memory and back, a piece at a time, between two batches.

The copies of a step take only the time that it has for them, and a sequence of which not all is
copied goes on in the next step.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from worker.engine.backend import Backend
from worker.engine.cache.host_cache import MIN_TOKENS, PIECE, HostCache, size_of
from worker.engine.media import count_positions
from worker.engine.sequence_state import Checkpoint, HostCacheHit, State
from worker.engine.slot import BlockChain, CacheNamespace, Slot

PAUSE_S = 60.0
"""Seconds without copies after a piece that took longer than to read its tokens again. Source: to
try it once a minute takes less than 1 % of the time.

llama.cpp copies each run of neighbouring cells of each layer by a call of its own, and where slots
generate at the same time each token is such a run. On an H200, 128 tokens of 40 layers took 95 ms
then, 6 ms if they lay side by side, and 14 ms to read.
"""
COPY_SHARE = 0.1
"""Part of a step's spare time for copies while prompts are read. Source: eight prompts of 400
tokens at once on two cores, against one piece a step: 3 % more tokens/s and a TTFT p99 6 % shorter,
because each row reads the cells that have not moved; with a quarter 1 % more tokens/s."""


@dataclass(slots=True)
class CopyTime:
    """How long the copies of one step may take, and have taken since the last one, in seconds."""

    clock: Callable[[], float] = time.perf_counter
    left_s: float = 0.0
    """What the step has for copies in all."""
    spent_s: float = 0.0
    piece_s: float = 0.0
    """What a whole piece takes, by the last one that was copied, in any step."""
    token_s: float = 0.0
    """What a token takes, by the same piece."""
    read_s: float = 0.0
    """What reading a token takes, where that may be faster than to copy it; 0: it is not."""
    is_slow: bool = False
    """Whether the last piece took longer than to read its tokens."""
    checkpoint_s: float = 0.0
    """What the last checkpoint took to copy, to the host's memory or back."""

    def begin(self, left_s: float, read_s: float = 0.0) -> None:
        """Begin a step."""
        self.left_s, self.read_s = left_s, read_s

    def end(self) -> None:
        """End a step."""
        self.spent_s = 0.0

    def give_way(self) -> None:
        """Leave most of the step's time to the prompts that are read in it."""
        self.left_s *= COPY_SHARE

    @property
    def is_over(self) -> bool:
        """Whether the step has no time for another piece; the first is always copied."""
        return self.spent_s > 0.0 and self.spent_s + self.piece_s > self.left_s

    def has_time_for(self, n_tokens: int) -> bool:
        """Return whether a step can copy so many tokens at once.

        It always can where copying is always faster than reading. The first copy is taken to be as
        slow as reading.
        """
        token_s = self.token_s or self.read_s
        return self.read_s <= 0.0 or self.spent_s + token_s * n_tokens <= self.left_s

    @property
    def has_time_for_checkpoint(self) -> bool:
        """Whether the step has time for another checkpoint; the first is always copied."""
        return self.spent_s <= 0.0 or self.spent_s + self.checkpoint_s <= self.left_s

    @contextmanager
    def of_checkpoint(self) -> Iterator[None]:
        """Measure the copying of a checkpoint."""
        start = self.clock()
        yield
        self.checkpoint_s = self.clock() - start
        self.spent_s += self.checkpoint_s

    @contextmanager
    def measured(self, n_tokens: int) -> Iterator[None]:
        """Measure the copying of a piece of so many tokens."""
        start = self.clock()
        yield
        took_s = self.clock() - start
        self.piece_s = took_s * max(1.0, PIECE / n_tokens)
        self.token_s = took_s / n_tokens
        self.spent_s += took_s
        self.is_slow = n_tokens >= MIN_TOKENS and 0.0 < n_tokens * self.read_s < took_s


class Copied(Protocol):
    """A sequence that is copied: a slot or a branch."""

    id: int
    tokens: list[int]
    chain: BlockChain

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """Places where it can be cut, if not anywhere."""

    @property
    def namespace(self) -> CacheNamespace:
        """Who may use it."""


@dataclass(slots=True)
class _UnfinishedCopy:
    namespace: CacheNamespace
    tokens: list[int]
    pieces: list[State]
    n_pos: int
    """Positions of the pieces."""

    def is_of(self, old: Copied) -> bool:
        return self.namespace == old.namespace and self.tokens == old.tokens


class HostTransfer:
    """Carries pieces between the context and `HostCache`; used by the engine's thread only."""

    def __init__(self, host: HostCache, backend: Backend, copies: CopyTime) -> None:
        self._host = host
        self._backend = backend
        self._states = backend.states
        self._copies = copies
        self._unfinished: _UnfinishedCopy | None = None
        self._token_bytes = 0.0
        """Bytes of a token in the last copy."""
        self._paused_until = 0.0
        """Time before which nothing is copied, because the last piece was slow."""

    def can_hold(self, n_tokens: int) -> bool:
        """Return whether a copy of so many tokens is worth it and fits, as far as is known."""
        is_worth_it = n_tokens >= MIN_TOKENS and self._copies.clock() >= self._paused_until
        return is_worth_it and self._host.can_hold(n_tokens * self._token_bytes)

    def save(self, old: Copied, *, is_last: bool) -> bool:
        """Copy more of a sequence; return whether all of it is in the host's memory now.

        If this is the last step in which that is possible, the beginning that is copied is kept.
        """
        n_all, copy = len(old.tokens), self._unfinished
        if not self.can_hold(n_all):
            return False
        if copy is None or not copy.is_of(old):
            if self._host.has(old.namespace, old.tokens, old.chain.cut(n_all)):
                return True
            pieces = self._host.pieces(old.namespace, old.tokens)
            n_pos = count_positions(old.tokens[: len(pieces) * self._host.n_piece])
            copy = _UnfinishedCopy(old.namespace, list(old.tokens), pieces, n_pos)
        n = self._extend(copy, old)
        if n < n_all and not is_last:
            self._unfinished = copy
            return False
        if copy is self._unfinished:
            self._unfinished = None
        chain, checkpoints = old.chain.cut(n), tuple(old.checkpoints)
        is_kept = self._host.put(old.namespace, copy.tokens[:n], copy.pieces, chain, checkpoints)
        return is_kept and n == n_all

    def put(self, slot: Slot, hit: HostCacheHit) -> int:
        """Append more of its prompt to a slot, to the end of a piece; return that end, or -1.

        The caller adds the tokens.
        """
        seq, start = slot.id, len(slot.tokens)
        number = start // self._host.n_piece
        end = min((number + 1) * self._host.n_piece, hit.n)
        end_pos = slot.n_pos + count_positions(slot.active.reading[start:end])
        with self._copies.measured(end - start):
            is_there = (
                self._put_whole(seq, hit, end_pos)
                if self._host.is_whole
                else self._states.put_part(seq, hit.pieces[number], slot.n_pos, end_pos)
            )
        return end if is_there else -1

    def _put_whole(self, seq: int, hit: HostCacheHit, end_pos: int) -> bool:
        """Replace a sequence by a copy, and cut it at the end of what is used."""
        if not self._states.put(seq, hit.pieces[0], hit.n_pos):
            return False
        if not self._states.needs_checkpoints:
            self._backend.remove(seq, end_pos)
            return True
        at_end = [each for each in hit.checkpoints if each.n == hit.n]
        return all(self._states.go_back(seq, each) for each in at_end)

    def clear(self) -> None:
        """Drop all copies."""
        self._unfinished = None
        self._host.clear()

    def _extend(self, copy: _UnfinishedCopy, old: Copied) -> int:
        """Copy as many pieces as the step has time for; return the tokens of all pieces."""
        n_piece, n_all = self._host.n_piece, len(copy.tokens)
        n = min(len(copy.pieces) * n_piece, n_all)
        while n < n_all and not self._copies.is_over and self.can_hold(n_all):
            start, n = n, min(n + n_piece, n_all)
            with self._copies.measured(n - start):
                copy.pieces.append(self._copy(copy, old.id, start, n))
            if self._copies.is_slow:
                self._paused_until = self._copies.clock() + PAUSE_S
            self._token_bytes = size_of(copy.pieces, old.checkpoints) / n
        return n

    def _copy(self, copy: _UnfinishedCopy, seq: int, start: int, end: int) -> State:
        if self._host.is_whole:
            return self._states.copy(seq)
        start_pos = copy.n_pos
        copy.n_pos += count_positions(copy.tokens[start:end])
        return self._states.copy_part(seq, start_pos, copy.n_pos)
