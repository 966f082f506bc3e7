"""What the cache calls the sequences of a context: slots first, then branches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from worker.engine.sequence_state import Checkpoint
from worker.engine.slot import BlockChain, CacheNamespace, Slot

MAX_SEQUENCES = 256
"""llama.cpp's own bound (LLAMA_MAX_SEQ)."""


MIN_SHARED = 16
"""Minimum number of tokens to share. Source: fewer are read in the time that sharing takes."""
_CELLS_PER_TOKEN = 128
"""Cells of another cache that are copied while a token is read. Source: 190 on an H100, with a
model of 5 GB."""


def min_copied(n_ctx: int) -> int:
    """Return the minimum number of tokens to take of a slot with a cache of its own.

    All of its `n_ctx` cells are copied.
    """
    return MIN_SHARED + n_ctx // _CELLS_PER_TOKEN


def n_sequences(n_slots: int, n_branches: int) -> int:
    """Return how many sequences a context has: slots and branches."""
    return min(MAX_SEQUENCES, n_slots + n_branches)


class CacheLimits(NamedTuple):
    """What the cache may keep in the host's memory."""

    host_bytes: int = 0
    """Bytes of copies; below 0 there is no limit."""
    n_checkpoints: int = 32
    """Checkpoints of a slot."""
    checkpoint_bytes: int = 0
    """Bytes of the checkpoints of all slots; at 0 their number alone is bounded."""


class CachedPrefix(NamedTuple):
    """A sequence whose first `n` tokens are a prompt's, and are computed."""

    seq: int
    n: int


@dataclass(slots=True)
class CachedBranch:
    """An idle sequence that a slot held before it took another task."""

    id: int
    """Number of the sequence."""
    tokens: list[int]
    namespace: CacheNamespace
    chain: BlockChain
    last_used: int
    checkpoints: Sequence[Checkpoint] = ()
    """None: where they are needed there are no branches."""


Idle = CachedBranch | Slot
"""A sequence that no task uses."""


def last_stop(n_tokens: int, checkpoints: Sequence[Checkpoint], n: int) -> int:
    """Return the last place within `n` of a sequence's tokens where it can be cut.

    Places are its end, its checkpoints, and 0.
    """
    stops = (n_tokens, *(checkpoint.n for checkpoint in checkpoints))
    return max((stop for stop in stops if stop <= n), default=0)
