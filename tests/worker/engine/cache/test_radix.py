"""The radix tree against the plainest model of it: a dictionary of lists."""

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from worker.engine.cache import radix
from worker.engine.cache.prefix import common_prefix
from worker.engine.cache.radix import RadixTree

TOKENS = st.lists(st.integers(0, 2), max_size=12)
KEYS = st.integers(0, 5)


class TreeMachine(RuleBasedStateMachine):
    """Does the same to the tree and to lists."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = RadixTree()
        self.model: dict[int, list[int]] = {}

    @rule(key=KEYS, tokens=TOKENS)
    def extend(self, key: int, tokens: list[int]) -> None:
        """Append."""
        self.tree.extend(key, tokens)
        if tokens:
            self.model[key] = self.model.get(key, []) + tokens

    @rule(key=KEYS, other=KEYS, n=st.integers(0, 20))
    def fork(self, key: int, other: int, n: int) -> None:
        """Let a sequence begin as another."""
        if other not in self.model and key in self.model:
            self.extend(other, self.model[key][:n])

    @rule(key=KEYS, n=st.integers(0, 20))
    def cut(self, key: int, n: int) -> None:
        """Shorten."""
        self.tree.cut(key, n)
        if key in self.model:
            del self.model[key][n:]
            if not self.model[key]:
                del self.model[key]

    @rule(prompt=TOKENS)
    def look_up(self, prompt: list[int]) -> None:
        """The match is the longest there is, and just its holders are named."""
        match = self.tree.longest(prompt)
        lengths = {key: common_prefix(tokens, prompt) for key, tokens in self.model.items()}
        assert match.n == max(lengths.values(), default=0)
        assert match.keys == {key for key, n in lengths.items() if n and n == match.n}

    @invariant()
    def the_books_agree(self) -> None:
        """Lengths, what is shared, and what each has for itself."""
        tree = self.tree
        assert len(tree) == len(self.model)
        beginnings = {tuple(t[: i + 1]) for t in self.model.values() for i in range(len(t))}
        assert tree.n_tokens == len(beginnings)
        for key, tokens in self.model.items():
            assert tree.length(key) == len(tokens)
            others = [t for k, t in self.model.items() if k != key]
            shared = max((common_prefix(tokens, other) for other in others), default=0)
            assert tree.n_own(key) == len(tokens) - shared
            for other, text in self.model.items():
                begins = key != other and text[: len(tokens)] == tokens
                assert tree.is_covered(key, other) == begins

    @invariant()
    def forks_are_real(self) -> None:
        """No node has a single child with the very same sequences: paths stay compressed."""
        nodes = [self.tree._root]
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            if node is not self.tree._root:
                assert node.tokens and node.keys
                assert not any(child.keys == node.keys for child in node.children.values())


TreeMachine.TestCase.settings = examples(200, stateful_step_count=30)
TestTree = TreeMachine.TestCase


def test_an_edge_is_compared_from_where_it_starts() -> None:
    assert common_prefix([1, 2, 3], [0, 1, 2, 9], 1) == 2
    assert common_prefix([1, 2, 3], [0, 1, 2, 3, 4], 1) == 3
    assert common_prefix([1, 2, 3], [0], 1) == 0


@pytest.mark.parametrize("n_sequences", [2, 250])
def test_an_operation_does_not_depend_on_how_many_sequences_there_are(
    n_sequences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, tree = list(range(1000)), RadixTree()
    for key in range(n_sequences):
        tree.extend(key, [*prompt[:600], 10_000 + key, *range(300)])
    n_compared = 0

    def counting(edge: Sequence[int], tokens: Sequence[int], at: int) -> int:
        nonlocal n_compared
        n_compared += 1
        return common_prefix(edge, tokens, at)

    monkeypatch.setattr(radix, "common_prefix", counting)
    assert tree.longest(prompt).n == 600
    tree.extend(1000, [*prompt[:600], 7, 8])
    tree.cut(1000, 0)
    assert n_compared == 2, "one stretch was compared by each"
