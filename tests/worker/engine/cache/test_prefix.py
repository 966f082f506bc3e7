"""Common prefixes, and how much of a cached prompt is kept."""

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.cache.prefix import common_prefix, reusable

TOKENS = st.lists(st.integers(0, 2), max_size=40)


@given(TOKENS, TOKENS)
def test_common_prefix_is_the_longest(a: list[int], b: list[int]) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


@given(TOKENS, TOKENS)
def test_one_prompt_token_is_left_to_read(cached: list[int], prompt: list[int]) -> None:
    assert reusable(cached, prompt) <= max(0, len(prompt) - 1)
