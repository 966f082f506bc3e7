"""Chains of blocks, and the words in which a worker says what it holds."""

import hashlib
from collections.abc import Callable

from gateway.pool.tasks.block_hashes import Prefix
from protocol.wire.cached import BLOCK_BYTES, Cached
from worker.engine.cache.cached_blocks import CachedBlocks
from worker.engine.slot import BlockChain


def chain(text: str) -> bytes:
    """Blocks of one letter each."""
    return b"".join(
        hashlib.blake2b(text[: i + 1].encode(), digest_size=BLOCK_BYTES).digest()
        for i in range(len(text))
    )


def prefix(text: str) -> Prefix:
    """A prompt with blocks of one letter each."""
    return Prefix(chain(text), len(text))


class Speaker:
    """What a worker holds for each task, said to a gateway as it changes."""

    def __init__(self, say: Callable[[Cached], None]) -> None:
        self._held = CachedBlocks()
        self._say = say

    def hold(self, task_id: int, blocks: bytes, share: float = 1.0) -> None:
        """Hold a share of a task's blocks from now on."""
        self._held.put(task_id, BlockChain(blocks, 1000).cut(round(1000 * share)))
        for message in self._held.take():
            self._say(message)

    def announce(self) -> list[Cached]:
        """Return what a gateway is told that is new."""
        return self._held.everything()
