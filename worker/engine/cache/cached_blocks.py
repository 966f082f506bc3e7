"""The blocks of prompts that the cache holds, by their hashes, as gateways get them. Pure.

Each sequence has the chain of block hashes of the prompt that it was read for. A block is held as
long as any sequence has it. Only changes of that set are reported, so a sequence that moves (to a
branch, to the host's memory, to another slot) causes no message.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping

from protocol.wire.cached import (
    BLOCK_BYTES,
    MAX_CACHED_BLOCKS,
    MAX_CHAIN_BLOCKS,
    MAX_SAID_BLOCKS,
    Cached,
)
from worker.engine.cache.prefix import common_prefix
from worker.engine.slot import BlockChain

_BEGINNING = bytes(BLOCK_BYTES)


class CachedBlocks:
    """Blocks of all sequences, and unreported changes; used by the engine's thread only."""

    def __init__(self, max_blocks: int = MAX_CACHED_BLOCKS) -> None:
        """Hold at most `max_blocks`: what exceeds them of a new prompt is left out."""
        self._max_blocks = max_blocks
        self._chains: dict[Hashable, list[bytes]] = {}
        """Holder -> its blocks, in order."""
        self._counts: dict[bytes, int] = {}
        """Block -> sequences that have it."""
        self._added: dict[bytes, bytes] = {}
        """Block -> the one before it, for blocks that are new since `take`; `_removed` likewise."""
        self._removed: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def __repr__(self) -> str:
        return f"<CachedBlocks {len(self._counts)} of {len(self._chains)} sequences>"

    def put(self, holder: Hashable, chain: BlockChain) -> None:
        """Note what a sequence holds from now on; an empty chain forgets it."""
        old, new = self._chains.get(holder, []), _split(chain.blocks)
        n = common_prefix(old, new)
        # First what is new: what another sequence takes over is never counted down to nothing.
        held = new[:n] + self._take(new, n)
        for i in range(n, len(old)):
            self._drop(old[i], old[i - 1] if i else _BEGINNING)
        if held:
            self._chains[holder] = held
        else:
            self._chains.pop(holder, None)

    def take(self) -> list[Cached]:
        """Return messages with the changes since the last call."""
        if not (self._added or self._removed):
            return []
        messages = [Cached(removed=runs) for runs in _messages(self._removed)]
        messages += [Cached(added=runs) for runs in _messages(self._added)]
        self._added, self._removed = {}, {}
        return messages

    def everything(self) -> list[Cached]:
        """Return messages with all blocks that are held."""
        before: dict[bytes, bytes] = {}
        for chain in self._chains.values():
            last = _BEGINNING
            for block in chain:
                before.setdefault(block, last)
                last = block
        return [Cached(added=runs) for runs in _messages(before)]

    def _take(self, chain: list[bytes], n: int) -> list[bytes]:
        """Count the blocks of a chain from the `n`-th on; return those that found room."""
        counts = self._counts
        for i in range(n, len(chain)):
            block = chain[i]
            count = counts.get(block, 0)
            if not count and len(counts) >= self._max_blocks:
                return chain[n:i]
            counts[block] = count + 1
            if not count and self._removed.pop(block, None) is None:
                self._added[block] = chain[i - 1] if i else _BEGINNING
        return chain[n:]

    def _drop(self, block: bytes, before: bytes) -> None:
        count = self._counts[block] - 1
        if count:
            self._counts[block] = count
            return
        del self._counts[block]
        if self._added.pop(block, None) is None:
            self._removed[block] = before


def _split(blocks: bytes) -> list[bytes]:
    """Cut a chain into its blocks; of one that is too long the rest is left out."""
    end = min(len(blocks) // BLOCK_BYTES, MAX_CHAIN_BLOCKS) * BLOCK_BYTES
    return [blocks[i : i + BLOCK_BYTES] for i in range(0, end, BLOCK_BYTES)]


def _messages(before: Mapping[bytes, bytes]) -> Iterator[tuple[bytes, ...]]:
    """Yield the runs of each message."""
    runs: list[bytes] = []
    n_blocks = 0
    for run in _runs(before.items()):
        n = len(run) // BLOCK_BYTES - 1
        if n_blocks + n > MAX_SAID_BLOCKS:
            yield tuple(runs)
            runs, n_blocks = [], 0
        runs.append(run)
        n_blocks += n
    if runs:
        yield tuple(runs)


def _runs(blocks: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Join blocks that follow one another, each given with the one before it."""
    run: list[bytes] = []
    for block, before in blocks:
        if run and (run[-1] != before or len(run) > MAX_SAID_BLOCKS):
            yield b"".join(run)
            run = []
        run = run or [before]
        run.append(block)
    if run:
        yield b"".join(run)
