"""Common prefixes, and how much of a cached prompt is kept."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.cache.prefix import common_prefix, reusable

TOKENS = st.lists(st.integers(0, 2), max_size=40)


@given(TOKENS, TOKENS)
def test_common_prefix_is_the_longest(a: list[int], b: list[int]) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 319, 320, 321, 5000])
def test_common_prefix_of_long_lists_ends_where_they_differ(n: int) -> None:
    tokens = list(range(5000))
    assert common_prefix(tokens, [*tokens[:n], -1, *tokens[n + 1 :]]) == n
    assert common_prefix(tokens[:n], tokens) == common_prefix(tokens, tokens[:n]) == n
    assert common_prefix(tokens[7:], [*tokens[: 7 + n], -1], 7) == min(n, 4993)


class _Counted(list[int]):
    """Counts the items of all slices."""

    n_read = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.n_read += len(found) if isinstance(at, slice) else 1
        return found


@pytest.mark.parametrize("n", [0, 10, 1000])
def test_what_differs_early_is_found_early(n: int) -> None:
    """A copy of each of thousands of prompts is compared with a new one."""
    cached, prompt = _Counted(range(100_000)), list(range(n)) + [-1] * 100_000
    assert common_prefix(cached, prompt) == n
    assert cached.n_read < 10 * n + 200


@given(TOKENS, TOKENS)
def test_one_prompt_token_is_left_to_read(cached: list[int], prompt: list[int]) -> None:
    assert reusable(cached, prompt) <= max(0, len(prompt) - 1)
