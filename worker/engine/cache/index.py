"""Which sequences hold which tokens: one radix tree for each namespace. Pure."""

from collections.abc import Hashable, Sequence

from worker.engine.cache.radix import NOTHING, RadixMatch, RadixTree


class SequenceIndex:
    """Sequences of tokens by their numbers; each is in one namespace, and forgotten when empty."""

    def __init__(self) -> None:
        self._trees: dict[Hashable, RadixTree] = {}
        self._namespaces: dict[int, Hashable] = {}

    def extend(self, seq: int, namespace: Hashable, tokens: Sequence[int]) -> None:
        """Append tokens to a sequence; an unknown one is added in this namespace."""
        if tokens:
            namespace = self._namespaces.setdefault(seq, namespace)
            self._trees.setdefault(namespace, RadixTree()).extend(seq, tokens)

    def cut(self, seq: int, n: int) -> None:
        """Shorten a sequence to its first `n` tokens."""
        tree = self._tree(seq)
        tree.cut(seq, n)
        if n == 0 and (namespace := self._namespaces.pop(seq, None)) is not None and not len(tree):
            del self._trees[namespace]

    def longest(self, namespace: Hashable, tokens: Sequence[int]) -> RadixMatch:
        """Find the longest prefix of `tokens` that any sequence of a namespace holds."""
        tree = self._trees.get(namespace)
        return NOTHING if tree is None else tree.longest(tokens)

    @property
    def n_tokens(self) -> int:
        """Tokens of all sequences; a common prefix counts once."""
        return sum(tree.n_tokens for tree in self._trees.values())

    def length(self, seq: int) -> int:
        """Return how many tokens of a sequence are known."""
        return self._tree(seq).length(seq)

    def tokens_of(self, seq: int) -> list[int]:
        """Return the tokens of a sequence."""
        return self._tree(seq).tokens_of(seq)

    def n_own(self, seq: int) -> int:
        """Count the tokens at the end of a sequence that no other has."""
        return self._tree(seq).n_own(seq)

    def is_covered(self, seq: int, other: int) -> bool:
        """Return whether a sequence is a prefix of another."""
        return self._tree(seq).is_covered(seq, other)

    def _tree(self, seq: int) -> RadixTree:
        return self._trees.get(self._namespaces.get(seq), _EMPTY)


_EMPTY = RadixTree()
