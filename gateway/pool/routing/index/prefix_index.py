"""What is cached where: which workers hold the blocks of a prompt. Pure bookkeeping.

A prompt is known by the hashes of its blocks, each of which stands for all before it too
(`block_hashes.py`). Workers say which blocks they hold (`Cached`), so that every gateway knows the
same and a new one knows it at once; one lookup answers for the whole pool. What was assigned and
has not been started yet is expected to be held soon. It is a prediction; the worker itself counts
what it reuses. A worker that reports wrong blocks only attracts prompts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.pool.routing.index.block_table import BlockTable
from gateway.pool.routing.index.worker_sets import WorkerSets
from protocol.wire.cached import BLOCK_BYTES, MAX_CACHED_BLOCKS, MAX_SAID_BLOCKS

_SWEPT = 64
"""Segments of the table that are cleared of a lost worker in one go: a millisecond."""
_MANY = 3
"""A block that at least this many different prompts continue ends a shared system prompt."""


class Holders(NamedTuple):
    """The workers that hold the beginning of a prompt, those with most of it first."""

    levels: tuple[tuple[int, int], ...] = ()
    """A number of blocks, and the mask of the workers that hold exactly that many."""
    shared: tuple[int, int] = (0, 1)
    """Leading blocks that several prompts share, and how many prompts do."""

    @property
    def max_blocks(self) -> int:
        """Maximum number of blocks that one worker holds."""
        return self.levels[0][0] if self.levels else 0

    def depth(self, bit: int) -> int:
        """Return how many blocks a worker holds."""
        return next((n for n, mask in self.levels if mask & bit), 0)


class _ExpectedBlocks(NamedTuple):
    """Blocks that a worker will hold when it has started a task."""

    bit: int
    blocks: "memoryview[int]"


@dataclass(slots=True)
class _ExpectedAt:
    """What one worker is expected to hold."""

    tasks: set[int] = field(default_factory=set)
    """Ids of the tasks in `_expected` that it has."""
    n_more: dict[int, int] = field(default_factory=dict)
    """Block -> tasks that have it beyond one, for blocks that several have."""


class PrefixIndex:
    """Blocks of prompts and the workers that have them."""

    def __init__(self) -> None:
        self.max_blocks = MAX_CACHED_BLOCKS
        """Indexed blocks of a worker; further ones that it reports are ignored."""
        self._table = BlockTable()
        self._sets = WorkerSets()
        self._bits: dict[str, int] = {}
        """Worker -> its bit."""
        self._n_held: dict[str, int] = {}
        self._forks: set[int] = set()
        """Blocks that many prompts go on from."""
        self._expected: dict[int, _ExpectedBlocks] = {}
        """By task."""
        self._expected_at: dict[int, _ExpectedAt] = {}
        """By the bit of a worker."""
        self._soon: dict[int, int] = {}
        """Block -> workers that are expected to hold it."""
        self._dead: frozenset[int] = frozenset()
        """Numbers of sets whose last worker is gone; their blocks are still in the table."""
        self._next_swept = 0

    @property
    def n_blocks(self) -> int:
        """Blocks that any worker holds."""
        return len(self._table)

    def n_held(self, worker: str) -> int:
        """Count the blocks of a worker."""
        return self._n_held.get(worker, 0)

    # ---- workers ------------------------------------------------------------------------------

    def open(self, worker: str) -> int:
        """Take in a worker that holds nothing yet; return its bit."""
        used = 0
        for bit in self._bits.values():
            used |= bit
        self._bits[worker] = bit = ~used & (used + 1)
        self._n_held[worker] = 0
        return bit

    def lost(self, worker: str) -> None:
        """Forget a worker."""
        self.clear(worker)
        self._bits.pop(worker, None)
        self._n_held.pop(worker, None)

    def clear(self, worker: str) -> None:
        """Forget what a worker holds."""
        bit = self._bits.get(worker, 0)
        if not bit:
            return
        if (expected := self._expected_at.get(bit)) is not None:
            for task_id in list(expected.tasks):
                self.forget_expected(task_id)
        self._n_held[worker] = 0
        empty = self._sets.leave(bit)
        if empty:
            self._dead |= empty
            self._next_swept = 0
            self.prune()

    def prune(self) -> None:
        """Drop some of the blocks that no worker holds any more; to be called again and again."""
        if not self._dead:
            return
        start, n = self._next_swept, self._table.n_segments
        # A number that was given to another set meanwhile is not theirs any more.
        dead = frozenset(set_id for set_id in self._dead if not self._sets.mask(set_id))
        for name in list(self._table.with_sets(dead, start, _SWEPT)):
            self._drop(name)
        # Segments that were joined meanwhile are looked at again.
        self._next_swept = max(0, start + _SWEPT - (n - self._table.n_segments))
        if self._next_swept >= self._table.n_segments:
            self._dead = frozenset()
            self._next_swept = 0

    # ---- what workers report ------------------------------------------------------------------

    def add(self, worker: str, runs: Iterable[bytes]) -> None:
        """Note blocks that a worker holds now, each run after the block that precedes it."""
        bit, n_new = self._bits.get(worker, 0), 0
        if not bit:
            return
        n_free = self.max_blocks - self._n_held[worker]
        for parent, blocks in _blocks_of(runs):
            before = parent
            for name in blocks:
                if n_new >= n_free:
                    break
                n_new += self._add(name, before, bit)
                before = name
        self._n_held[worker] += n_new

    def remove(self, worker: str, runs: Iterable[bytes]) -> None:
        """Note blocks that a worker holds no longer."""
        bit, n_gone = self._bits.get(worker, 0), 0
        for _, blocks in _blocks_of(runs):
            for name in blocks:
                n_gone += self._remove(name, bit)
        if bit:
            self._n_held[worker] -= n_gone

    def _add(self, name: int, parent: int, bit: int) -> bool:
        place = self._table.find(name)
        if place is None:
            if self._table.add(name, parent, self._sets.take(bit)) == _MANY:
                self._forks.add(parent)
            return True
        number = place.set_id
        mask = self._sets.mask(number)
        if mask & bit:
            return False
        place.segment.sets[place.at] = self._sets.take(mask | bit)
        self._sets.drop(number)
        return True

    def _remove(self, name: int, bit: int) -> bool:
        place = self._table.find(name)
        if place is None or not (mask := self._sets.mask(place.set_id)) & bit:
            return False
        if mask == bit:
            self._drop(name)
            return True
        number = place.set_id
        place.segment.sets[place.at] = self._sets.take(mask & ~bit)
        self._sets.drop(number)
        return True

    def _drop(self, name: int) -> None:
        self._sets.drop(self._table.set_of(name))
        parent, n_branches = self._table.remove(name)
        self._forks.discard(name)
        if n_branches < _MANY:
            self._forks.discard(parent)

    # ---- what was assigned --------------------------------------------------------------------

    def expect(self, worker: str, task_id: int, chain: bytes) -> None:
        """Take the blocks of a task for held until its worker has started it."""
        self.forget_expected(task_id)
        bit, blocks = self._bits.get(worker, 0), _names(chain)
        n_known, _ = self._deepest(self._held, blocks, len(blocks), bit)
        if not bit or n_known == len(blocks):
            return
        self._expected[task_id] = _ExpectedBlocks(bit, blocks[n_known:])
        at = self._expected_at.setdefault(bit, _ExpectedAt())
        at.tasks.add(task_id)
        soon, n_more = self._soon, at.n_more
        for name in blocks[n_known:]:
            mask = soon.get(name, 0)
            if mask & bit:
                n_more[name] = n_more.get(name, 0) + 1
            else:
                soon[name] = mask | bit

    def forget_expected(self, task_id: int) -> None:
        """Forget expected blocks: the worker has reported what it holds, or will not begin."""
        gone = self._expected.pop(task_id, None)
        if gone is None:
            return
        at = self._expected_at[gone.bit]
        soon, n_more = self._soon, at.n_more
        for name in gone.blocks:
            if n := n_more.pop(name, 0):
                if n > 1:
                    n_more[name] = n - 1
            elif mask := soon.pop(name) & ~gone.bit:
                soon[name] = mask
        at.tasks.remove(task_id)
        if not at.tasks:
            del self._expected_at[gone.bit]

    # ---- what is asked ------------------------------------------------------------------------

    def holders(
        self, chain: bytes, among: int = -1, *, n_max: int = 1 << 30, also: int = 0
    ) -> Holders:
        """Find the workers among a mask that hold the beginning of a prompt, the most first.

        Once `n_max` workers are found, only those of `also` are looked for.
        """
        blocks = _names(chain)
        levels: list[tuple[int, int]] = []
        n, seen = len(blocks), 0
        while n:
            wanted = (among if seen.bit_count() < n_max else also) & ~seen
            n, mask = self._deepest(self._holding, blocks, n, wanted) if wanted else (0, 0)
            if not mask:
                break
            levels.append((n, mask))
            seen |= mask
            n -= 1
        n_known = levels[0][0] if levels else 0
        return Holders(tuple(levels), self._shared(blocks, n_known))

    @staticmethod
    def _deepest(
        who: Callable[[int], int], blocks: Sequence[int], n: int, among: int
    ) -> tuple[int, int]:
        """Return how many of the first `n` blocks any of these workers holds, and which do.

        By bisection: who holds a block has all before it.
        """
        known, unknown, found = 0, n + 1, 0
        while unknown - known > 1:
            middle = (known + unknown) // 2
            if mask := who(blocks[middle - 1]) & among:
                known, found = middle, mask
            else:
                unknown = middle
        return known, found

    def _held(self, name: int) -> int:
        return self._sets.mask(self._table.set_of(name))

    def _holding(self, name: int) -> int:
        held = self._sets.mask(self._table.set_of(name))
        return held | self._soon.get(name, 0) if self._soon else held

    def _shared(self, blocks: "memoryview[int]", n_known: int) -> tuple[int, int]:
        """Return how many of the known blocks several prompts share, and how many prompts do."""
        if not (n_known and self._forks):
            return 0, 1
        found = self._forks.intersection(blocks[:n_known])
        if not found:
            return 0, 1
        n = next(n for n in range(n_known, 0, -1) if blocks[n - 1] in found)
        return n, self._table.branches(blocks[n - 1])


def _names(chain: bytes) -> "memoryview[int]":
    """Return the blocks of a chain as numbers; a part of one at the end is left out."""
    whole = len(chain) // BLOCK_BYTES * BLOCK_BYTES
    return memoryview(chain)[:whole].cast("Q")


def _blocks_of(runs: Iterable[bytes]) -> "Iterable[tuple[int, memoryview[int]]]":
    """Yield the runs of a message as the block before and its own, up to a bound."""
    n_left = MAX_SAID_BLOCKS
    for run in runs:
        names = _names(run)[: n_left + 1]
        if len(names) > 1:
            yield names[0], names[1:]
            n_left -= len(names) - 1
        if n_left <= 0:
            return
