"""Copies sequences to the host's memory and back, a piece at a time, between two batches.

The copies of a step take only the time that it has for them, and a sequence of which not all is
copied goes on in the next step.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from worker.engine.cache.host_cache import MIN_TOKENS, HostCache
from worker.engine.sequence_state import HostCacheHit, SequenceState, State
from worker.engine.slot import BlockChain, CacheNamespace


@dataclass(slots=True)
class CopyTime:
    """How long the copies of one step may take, and have taken, in seconds."""

    clock: Callable[[], float] = time.perf_counter
    left_s: float = 0.0
    """What the step has for copies in all."""
    spent_s: float = 0.0
    last_s: float = 0.0
    """What the last piece took, in any step."""

    def begin(self, left_s: float) -> None:
        """Begin a step."""
        self.left_s, self.spent_s = left_s, 0.0

    @property
    def is_over(self) -> bool:
        """Whether the step has no time for another piece; the first is always copied."""
        return self.spent_s > 0.0 and self.spent_s + self.last_s > self.left_s

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the copying of a piece."""
        start = self.clock()
        yield
        self.last_s = self.clock() - start
        self.spent_s += self.last_s


class Copied(Protocol):
    """A sequence that is copied: a slot or a branch."""

    id: int
    tokens: list[int]
    chain: BlockChain

    @property
    def namespace(self) -> CacheNamespace:
        """Who may use it."""


@dataclass(frozen=True, slots=True)
class _UnfinishedCopy:
    namespace: CacheNamespace
    tokens: list[int]
    pieces: list[State]

    def is_of(self, old: Copied) -> bool:
        return self.namespace == old.namespace and self.tokens == old.tokens


class HostTransfer:
    """Carries pieces between the context and `HostCache`; used by the engine's thread only."""

    def __init__(self, host: HostCache, states: SequenceState, copies: CopyTime) -> None:
        self._host = host
        self._states = states
        self._copies = copies
        self._unfinished: _UnfinishedCopy | None = None
        self._token_bytes = 0.0
        """Bytes of a token in the last copy."""

    def can_hold(self, n_tokens: int) -> bool:
        """Return whether a copy of so many tokens is worth it and fits, as far as is known."""
        return n_tokens >= MIN_TOKENS and self._host.can_hold(n_tokens * self._token_bytes)

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
            copy = _UnfinishedCopy(old.namespace, list(old.tokens), pieces)
        n = self._extend(copy, old.id)
        if n < n_all and not is_last:
            self._unfinished = copy
            return False
        if copy is self._unfinished:
            self._unfinished = None
        chain = old.chain.cut(n)
        return self._host.put(old.namespace, copy.tokens[:n], copy.pieces, chain) and n == n_all

    def put(self, seq: int, hit: HostCacheHit, start: int) -> int:
        """Append the tokens from `start` to the end of its piece; return that end, or -1."""
        number = start // self._host.n_piece
        end = min((number + 1) * self._host.n_piece, hit.n)
        with self._copies.measured():
            is_there = (
                self._states.put(seq, hit.pieces[0], end)
                if self._host.is_whole
                else self._states.put_part(seq, hit.pieces[number], start, end)
            )
        return end if is_there else -1

    def clear(self) -> None:
        """Drop all copies."""
        self._unfinished = None
        self._host.clear()

    def _extend(self, copy: _UnfinishedCopy, seq: int) -> int:
        """Copy as many pieces as the step has time for; return the tokens of all pieces."""
        n_piece, n_all = self._host.n_piece, len(copy.tokens)
        n = min(len(copy.pieces) * n_piece, n_all)
        while n < n_all and not self._copies.is_over and self.can_hold(n_all):
            start, n = n, min(n + n_piece, n_all)
            with self._copies.measured():
                copy.pieces.append(self._copy(seq, start, n))
            self._token_bytes = sum(map(len, copy.pieces)) / n
        return n

    def _copy(self, seq: int, start: int, end: int) -> State:
        if self._host.is_whole:
            return self._states.copy(seq)
        return self._states.copy_part(seq, start, end)
