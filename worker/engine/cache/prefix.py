"""Common prefixes, and which slot suits a prompt. Pure."""

from collections.abc import Sequence
from typing import Protocol, TypeVar


class TokenHolder(Protocol):
    """What choosing a slot needs to know of it."""

    @property
    def id(self) -> int:
        """Number of the slot."""

    @property
    def tokens(self) -> list[int]:
        """Tokens in its cache."""

    @property
    def last_used(self) -> int:
        """Grows with each release."""


C = TypeVar("C", bound=TokenHolder)
T = TypeVar("T")


def common_prefix(a: Sequence[T], b: Sequence[T], at: int = 0) -> int:
    """Count the leading items of `a` that stand in `b` from `at` on."""
    low, high = 0, min(len(a), len(b) - at)
    if a[:high] == b[at : at + high]:
        return high
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


def choose_slot(
    idle: Sequence[C], prompt: Sequence[int], similarity: float, alike: Sequence[C] | None = None
) -> C:
    """Pick the idle slot that holds most of the prompt, or else the least recently used.

    llama-server's rule (get_available_slot): the longest common prefix counts only above
    `similarity` of the prompt; 0 turns it off. `alike` are those whose caches could be used at
    all, unless it is every one.
    """
    best, best_share = None, similarity
    for slot in (idle if alike is None else alike) if similarity > 0 and prompt else ():
        share = common_prefix(slot.tokens, prompt) / len(prompt)
        if share > best_share:
            best, best_share = slot, share
    return best if best is not None else min(idle, key=lambda slot: (slot.last_used, slot.id))
