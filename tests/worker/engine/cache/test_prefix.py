"""Which slot suits a prompt, and how much of its cache is kept."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.cache.prefix import choose_slot, common_prefix, reusable

TOKENS = st.lists(st.integers(0, 2), max_size=40)


@given(TOKENS, TOKENS)
def test_common_prefix_is_the_longest(a: list[int], b: list[int]) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


@given(TOKENS, TOKENS)
def test_one_prompt_token_is_left_to_read(cached: list[int], prompt: list[int]) -> None:
    assert reusable(cached, prompt) <= max(0, len(prompt) - 1)


@dataclass
class FakeSlot:
    id: int
    tokens: list[int] = field(default_factory=list)
    last_used: int = 0


def test_similar_cache_wins_over_older_slot() -> None:
    slots = [FakeSlot(0, [], 1), FakeSlot(1, [1, 2, 3, 4], 9)]
    assert choose_slot(slots, [1, 2, 3, 5], 0.1).id == 1


def test_too_little_in_common_takes_the_oldest() -> None:
    slots = [FakeSlot(0, [1], 5), FakeSlot(1, [9], 2)]
    assert choose_slot(slots, [1, *range(50, 70)], 0.1).id == 1


def test_similarity_zero_takes_the_oldest() -> None:
    slots = [FakeSlot(0, [1, 2, 3], 5), FakeSlot(1, [9], 2)]
    assert choose_slot(slots, [1, 2, 3], 0.0).id == 1
