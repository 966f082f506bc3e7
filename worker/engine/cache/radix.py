"""A radix tree over token sequences: who has computed the beginning of a prompt? Pure.

Sequences are paths from the root and share the nodes of their common beginnings, as in SGLang's
RadixAttention (Zheng et al., 2024), but token by token: a cell of llama.cpp holds one token. Each
operation costs O(length of the sequence), however many sequences there are.
"""

from collections.abc import Sequence
from typing import NamedTuple

from worker.engine.cache.prefix import common_prefix


class RadixMatch(NamedTuple):
    """The longest known prefix of a prompt, and the sequences that hold it."""

    n: int
    keys: frozenset[int]


NOTHING = RadixMatch(0, frozenset())
"""Match of a prompt of which no prefix is known."""


class _Node:
    """A stretch of tokens without a fork; every sequence ends at the end of a node."""

    __slots__ = ("children", "keys", "parent", "tokens")

    def __init__(self, parent: "_Node | None", tokens: list[int], keys: set[int]) -> None:
        self.parent = parent
        self.tokens = tokens
        self.keys = keys
        self.children: dict[int, _Node] = {}


class RadixTree:
    """Indexes sequences by their tokens; a key is the number of a sequence."""

    def __init__(self) -> None:
        self._root = _Node(None, [], set())
        self._ends: dict[int, _Node] = {}
        self._lengths: dict[int, int] = {}
        self.n_tokens = 0
        """Tokens of all sequences; a common prefix counts once."""

    def __len__(self) -> int:
        return len(self._ends)

    def length(self, key: int) -> int:
        """Return how many tokens of a sequence are indexed; 0 for an unknown one."""
        return self._lengths.get(key, 0)

    def extend(self, key: int, tokens: Sequence[int]) -> None:
        """Append tokens to a sequence; an unknown one is added."""
        if not tokens:
            return
        self._lengths[key] = self.length(key) + len(tokens)
        start = node = self._ends.get(key, self._root)
        at = 0
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                node = self._append(node, key, list(tokens[at:]))
                break
            n = common_prefix(child.tokens, tokens, at)
            if n < len(child.tokens):
                self._split(child, n)
            child.keys.add(key)
            node, at = child, at + n
        self._ends[key] = node
        self._join(start)  # where the sequence ended, it need not fork from the others any more

    def cut(self, key: int, n: int) -> None:
        """Shorten a sequence to its first `n` tokens; 0 removes it."""
        end = self.length(key)
        if n >= end:
            return
        node = self._ends[key]
        while end > n:
            start = end - len(node.tokens)
            if start < n:
                self._trim(node, key, n - start)
                break
            parent = node.parent
            assert parent is not None
            self._leave(node, key)
            node, end = parent, start
        if n > 0:
            self._lengths[key], self._ends[key] = n, node
        else:
            del self._lengths[key], self._ends[key]
        self._join(node)

    def longest(self, tokens: Sequence[int]) -> RadixMatch:
        """Find the longest prefix of `tokens` that any sequence holds."""
        node, at, last = self._root, 0, None
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                break
            n = common_prefix(child.tokens, tokens, at)
            at += n
            last = child
            if n < len(child.tokens):
                break
            node = child
        return NOTHING if last is None else RadixMatch(at, frozenset(last.keys))

    def tokens_of(self, key: int) -> list[int]:
        """Return the tokens of a sequence."""
        node, pieces = self._ends.get(key), list[list[int]]()
        while node is not None:
            pieces.append(node.tokens)
            node = node.parent
        return [token for piece in reversed(pieces) for token in piece]

    def is_covered(self, key: int, other: int) -> bool:
        """Return whether a sequence is a prefix of another."""
        end = self._ends.get(key)
        return end is not None and key != other and other in end.keys

    def n_own(self, key: int) -> int:
        """Count the tokens at the end of a sequence that no other has."""
        node, n = self._ends.get(key), 0
        while node is not None and len(node.keys) == 1:
            n += len(node.tokens)
            node = node.parent
        return n

    def _append(self, node: _Node, key: int, tokens: list[int]) -> _Node:
        self.n_tokens += len(tokens)
        if node.keys == {key} and not node.children:
            node.tokens += tokens
            return node
        leaf = _Node(node, tokens, {key})
        node.children[tokens[0]] = leaf
        return leaf

    def _split(self, node: _Node, n: int) -> None:
        """Cut a node in two: it keeps its first `n` tokens, a new child gets the rest."""
        lower = _Node(node, node.tokens[n:], set(node.keys))
        lower.children = node.children
        for child in lower.children.values():
            child.parent = lower
        for key in node.keys:
            if self._ends[key] is node:
                self._ends[key] = lower
        del node.tokens[n:]
        node.children = {lower.tokens[0]: lower}

    def _trim(self, node: _Node, key: int, n: int) -> None:
        """Let a sequence end after the first `n` tokens of a node."""
        if n == len(node.tokens):
            return
        if node.keys == {key}:
            self.n_tokens -= len(node.tokens) - n
            del node.tokens[n:]
            return
        self._split(node, n)
        (lower,) = node.children.values()
        self._leave(lower, key)

    def _leave(self, node: _Node, key: int) -> None:
        node.keys.discard(key)
        if not node.keys:
            assert node.parent is not None
            del node.parent.children[node.tokens[0]]
            self.n_tokens -= len(node.tokens)
        else:
            self._join(node)

    def _join(self, node: _Node) -> None:
        """Merge two nodes where no fork is left between them."""
        if node is self._root or len(node.children) != 1:
            return
        (child,) = node.children.values()
        if child.keys != node.keys:
            return
        node.tokens += child.tokens
        node.children = child.children
        for grandchild in node.children.values():
            grandchild.parent = node
        for key in node.keys:
            if self._ends[key] is child:
                self._ends[key] = node
