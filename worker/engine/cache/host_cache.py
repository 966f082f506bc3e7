"""The second tier of the prefix cache: copies of sequences in the host's memory (`--cache-ram`).

Bounded in bytes; the least recently used copy goes first. A copy is a row of pieces of equal
length, of which a prompt with the same prefix takes what it needs. A new copy takes the place of
those of which it holds all but the last few tokens.
"""

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from worker.engine.cache.cached_blocks import CachedBlocks
from worker.engine.cache.prefix import common_prefix
from worker.engine.cache.radix import NOTHING, RadixMatch, RadixTree
from worker.engine.sequence_state import HostCacheHit, State
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
    chains: list[BlockChain]
    """Prompts that the tokens begin with, in blocks; the one that came last is the last."""

    @property
    def n_bytes(self) -> int:
        return sum(map(len, self.pieces))


class HostCache:
    """Owns the copies; used by the engine's thread only."""

    def __init__(
        self, n_bytes_max: int, blocks: CachedBlocks | None = None, *, is_whole: bool = False
    ) -> None:
        """`n_bytes_max` below 0 is no limit; `blocks` records the blocks of each copy.

        With `is_whole` a copy cannot be cut: it is one piece, and serves only prompts that begin
        with all of it.
        """
        self.is_whole = is_whole
        self.n_piece = sys.maxsize if is_whole else PIECE
        """Tokens of each piece of a copy but the last."""
        self._blocks = blocks if blocks is not None else CachedBlocks()
        self._n_bytes_max = n_bytes_max
        self._copies: dict[int, _Copy] = {}
        """The least recently used one first."""
        self._trees: dict[Hashable, RadixTree] = {}
        self._n_made = 0
        self.n_bytes = 0

    def can_hold(self, n_bytes: float) -> bool:
        """Return whether a copy of this size fits, if others make room."""
        return self._n_bytes_max < 0 or n_bytes <= self._n_bytes_max > 0

    def has(
        self, namespace: Hashable, tokens: Sequence[int], chain: BlockChain | None = None
    ) -> bool:
        """Return whether there is a copy of all these tokens, and note that it is wanted."""
        match = self._longest(namespace, tokens)
        if match.n < len(tokens):
            return False
        self._use(*match.keys)
        for key in match.keys:
            self._add_chain(key, chain)
        return True

    def pieces(self, namespace: Hashable, tokens: Sequence[int]) -> list[State]:
        """Return the pieces of a sequence that a copy has."""
        match = self._longest(namespace, tokens)
        known = next((self._copies[key].pieces for key in match.keys), [])
        return list(known[: match.n // self.n_piece])

    def put(
        self,
        namespace: Hashable,
        tokens: Sequence[int],
        pieces: Sequence[State],
        chain: BlockChain | None = None,
    ) -> bool:
        """Keep a copy of a sequence unless it is short; return whether there is one now.

        `chain` is the prompt that it begins with.
        """
        if len(tokens) < MIN_TOKENS:
            return False
        if self.has(namespace, tokens, chain):
            return True
        match = self._longest(namespace, tokens)
        n_bytes = sum(map(len, pieces))
        if not self._make_room(n_bytes):
            return False
        tree = self._trees.setdefault(namespace, RadixTree())
        self._n_made += 1
        key = self._n_made
        self._copies[key] = _Copy(namespace, list(tokens), pieces, [])
        self._add_chain(key, chain)
        tree.extend(key, tokens)
        self.n_bytes += n_bytes
        n_few = 1 if self.is_whole else MIN_TOKENS
        for other in match.keys & self._copies.keys():
            if tree.n_own(other) < n_few:
                for known in self._drop(other):
                    self._add_chain(key, known.cut(match.n))
        return True

    def find(self, namespace: Hashable, prompt: Sequence[int], n_max: int) -> HostCacheHit | None:
        """Find the copy that holds most of a prompt."""
        if self.is_whole:
            return self._find_whole(namespace, prompt, n_max)
        match = self._longest(namespace, prompt)
        n = min(match.n, n_max)
        if n == 0:
            return None
        key = min(match.keys)
        self._use(key)
        return HostCacheHit(n, self._copies[key].pieces)

    def clear(self) -> None:
        """Drop all copies."""
        for key in list(self._copies):
            self._drop(key)

    def __len__(self) -> int:
        return len(self._copies)

    def _longest(self, namespace: Hashable, tokens: Sequence[int]) -> RadixMatch:
        tree = self._trees.get(namespace)
        return NOTHING if tree is None else tree.longest(tokens)

    def _find_whole(
        self, namespace: Hashable, prompt: Sequence[int], n_max: int
    ) -> HostCacheHit | None:
        fitting = [
            (len(copy.tokens), key)
            for key, copy in self._copies.items()
            if copy.namespace == namespace
            and len(copy.tokens) <= n_max
            and common_prefix(copy.tokens, prompt) == len(copy.tokens)
        ]
        if not fitting:
            return None
        n, key = max(fitting)
        self._use(key)
        return HostCacheHit(n, self._copies[key].pieces)

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
        tree = self._trees[copy.namespace]
        tree.cut(key, 0)
        if not len(tree):
            del self._trees[copy.namespace]
        return chains
