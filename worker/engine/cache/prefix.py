"""Common prefixes of token lists. Pure."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_FIRST = 64
"""Items that are compared first."""


def common_prefix(a: Sequence[T], b: Sequence[T], at: int = 0) -> int:
    """Count the leading items of `a` that stand in `b` from `at` on.

    What differs at once is found at once, however long both are: slices grow as long as they agree.
    """
    low, high, end = 0, 0, min(len(a), len(b) - at)
    while low < end:
        high = min(end, 4 * low + _FIRST)
        if a[low:high] != b[at + low : at + high]:
            break
        low = high
    while high - low > 1:  # bisect: comparing slices is one C loop each
        middle = (low + high) // 2
        if a[low:middle] == b[at + low : at + middle]:
            low = middle
        else:
            high = middle
    return low


def reusable(cached: Sequence[int], prompt: Sequence[int]) -> int:
    """Count the cached tokens that a prompt can start from.

    One prompt token is always read again, because its logits are needed.
    """
    return max(0, min(common_prefix(cached, prompt), len(prompt) - 1))
