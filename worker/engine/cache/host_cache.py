"""The second tier of the prefix cache: copies of sequences in the host's memory (`--cache-ram`).

Bounded in bytes; the least recently used copy goes first. A copy is a row of pieces of equal
length, of which a prompt with the same prefix takes what it needs. A new copy takes the place of
those of which it holds all but the last few tokens.
"""

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from worker.engine.cache.cached_blocks import CachedBlocks
from worker.engine.cache.index import SequenceIndex
from worker.engine.cache.prefix import common_prefix
from worker.engine.cache.sequences import last_stop
from worker.engine.media import count_positions
from worker.engine.sequence_state import Checkpoint, HostCacheHit, State
from worker.engine.slot import BlockChain

MIN_TOKENS = 64
"""Minimum number of tokens of a copy. Source: fewer are read in the time that copying takes."""
MAX_CHAINS = 4
"""Prompts by which one copy is known: the same tokens may come as a chat, a text or tokens."""
PIECE = 256
"""Tokens of a piece. Source: of a model with 160 KB a token it is 40 MB, copied in 10 ms."""


@dataclass(slots=True)
class _Copy:
    namespace: Hashable
    tokens: list[int]
    pieces: Sequence[State]
    checkpoints: Sequence[Checkpoint]
    chains: list[BlockChain]
    """Prompts that the tokens begin with, in blocks; the one that came last is the last."""

    @property
    def n_bytes(self) -> int:
        return size_of(self.pieces, self.checkpoints)


class HostCache:
    """Owns the copies; used by the engine's thread only."""

    def __init__(
        self,
        n_bytes_max: int,
        blocks: CachedBlocks | None = None,
        *,
        is_whole: bool = False,
        can_cut: bool = True,
    ) -> None:
        """`n_bytes_max` below 0 is no limit; `blocks` records the blocks of each copy.

        With `is_whole` a copy is one piece. Sequences end at checkpoints unless they `can_cut`.
        """
        self.is_whole = is_whole
        self._can_cut = can_cut
        self.n_piece = sys.maxsize if is_whole else PIECE
        """Tokens of each piece of a copy but the last."""
        self._blocks = blocks if blocks is not None else CachedBlocks()
        self._n_bytes_max = n_bytes_max
        self._copies: dict[int, _Copy] = {}
        """The least recently used one first."""
        self._index = SequenceIndex()
        self._short: set[int] = set()
        """Copies that had few tokens of their own from the beginning; only the tokens of what is
        alone at its end can become few later."""
        self._n_made = 0
        self.n_bytes = 0

    def can_hold(self, n_bytes: float) -> bool:
        """Return whether a copy of this size fits, if others make room."""
        return self._n_bytes_max < 0 or n_bytes <= self._n_bytes_max > 0

    def has(
        self, namespace: Hashable, tokens: Sequence[int], chain: BlockChain | None = None
    ) -> bool:
        """Return whether there is a copy of all these tokens, and note that it is wanted."""
        match = self._index.longest(namespace, tokens)
        if match.n < len(tokens):
            return False
        self._use(*match.keys)
        for key in match.keys:
            self._add_chain(key, chain)
        return True

    def pieces(self, namespace: Hashable, tokens: Sequence[int]) -> list[State]:
        """Return the pieces of a sequence that a copy has."""
        match = self._index.longest(namespace, tokens)
        known = next((self._copies[key].pieces for key in match.keys), [])
        return list(known[: match.n // self.n_piece])

    def put(
        self,
        namespace: Hashable,
        tokens: Sequence[int],
        pieces: Sequence[State],
        chain: BlockChain | None = None,
        checkpoints: Sequence[Checkpoint] = (),
    ) -> bool:
        """Keep a copy of a sequence unless it is short; return whether there is one now.

        `chain` is the prompt that it begins with.
        """
        if len(tokens) < MIN_TOKENS:
            return False
        if self.has(namespace, tokens, chain):
            return True
        match = self._index.longest(namespace, tokens)
        n_bytes = size_of(pieces, checkpoints)
        if not self._make_room(n_bytes):
            return False
        self._n_made += 1
        key = self._n_made
        self._copies[key] = _Copy(namespace, list(tokens), pieces, checkpoints, [])
        self._add_chain(key, chain)
        self._index.extend(key, namespace, tokens)
        self.n_bytes += n_bytes
        n_few = MIN_TOKENS if self._can_cut else 1
        alike = match.keys if len(match.keys) == 1 else match.keys & self._short
        if len(tokens) - match.n < n_few:
            self._short.add(key)
        for other in alike & self._copies.keys():
            if self._index.n_own(other) < n_few:
                for known in self._drop(other):
                    self._add_chain(key, known.cut(match.n))
        return True

    def find(self, namespace: Hashable, prompt: Sequence[int], n_max: int) -> HostCacheHit | None:
        """Find the copy that holds most of a prompt."""
        if not self._can_cut:
            return self._find_whole(namespace, prompt, n_max)
        match = self._index.longest(namespace, prompt)
        n = min(match.n, n_max)
        if n == 0:
            return None
        if not self.is_whole:
            key = min(match.keys)
            self._use(key)
            return HostCacheHit(n, self._copies[key].pieces)
        # All of it comes back before it is cut: the smallest copy costs least.
        key = min(match.keys, key=lambda key: self._copies[key].n_bytes)
        return self._whole(key, n)

    def clear(self) -> None:
        """Drop all copies."""
        for key in list(self._copies):
            self._drop(key)

    def __len__(self) -> int:
        return len(self._copies)

    def n_alike(self, namespace: Hashable, prompt: Sequence[int]) -> int:
        """Return how many leading tokens of a prompt any copy has."""
        return self._index.longest(namespace, prompt).n

    def _find_whole(
        self, namespace: Hashable, prompt: Sequence[int], n_max: int
    ) -> HostCacheHit | None:
        # Of the same use, the smallest copy costs least to bring back.
        found: list[tuple[int, int, int]] = []
        for key, copy in self._copies.items():
            if copy.namespace == namespace:
                n = min(common_prefix(copy.tokens, prompt), n_max)
                stop = last_stop(len(copy.tokens), copy.checkpoints, n)
                found.append((stop, -copy.n_bytes, key))
        n, _, key = max(found, default=(0, 0, 0))
        return self._whole(key, n) if n else None

    def _whole(self, key: int, n: int) -> HostCacheHit:
        self._use(key)
        copy = self._copies[key]
        return HostCacheHit(n, copy.pieces, count_positions(copy.tokens), copy.checkpoints)

    def _make_room(self, n_bytes: int) -> bool:
        if not self.can_hold(n_bytes):
            return False
        while 0 <= self._n_bytes_max < self.n_bytes + n_bytes:
            self._drop(next(iter(self._copies)))
        return True

    def _add_chain(self, key: int, chain: BlockChain | None) -> None:
        """Add a prompt by which a copy is known; the oldest is forgotten if there are too many."""
        if chain is None or not chain.blocks:
            return
        known = [other for other in self._copies[key].chains if not chain.begins_with(other)]
        if not any(other.begins_with(chain) for other in known):
            known.append(chain)
        self._set_chains(key, known[-MAX_CHAINS:])

    def _set_chains(self, key: int, chains: list[BlockChain]) -> None:
        gone = [BlockChain()] * (len(self._copies[key].chains) - len(chains))
        self._copies[key].chains = chains
        for number, chain in enumerate((*chains, *gone)):
            self._blocks.put((key, number), chain)

    def _use(self, *keys: int) -> None:
        for key in keys:
            self._copies[key] = self._copies.pop(key)

    def _drop(self, key: int) -> list[BlockChain]:
        """Drop a copy; return the prompts by which it was known."""
        chains = self._copies[key].chains
        self._set_chains(key, [])
        copy = self._copies.pop(key)
        self.n_bytes -= copy.n_bytes
        self._index.cut(key, 0)
        self._short.discard(key)
        return chains


def size_of(pieces: Sequence[State], checkpoints: Sequence[Checkpoint]) -> int:
    """Return the bytes of a copy."""
    return sum(map(len, pieces)) + sum(len(checkpoint.state) for checkpoint in checkpoints)
