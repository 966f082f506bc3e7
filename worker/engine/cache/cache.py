"""The prefix cache: which sequences hold which tokens, and which are evicted first.

A slot that takes a task unrelated to the tokens it holds gives these to a *branch*: a sequence
number beyond the slots', which then shares the cells. Slots and branches are indexed in one radix
tree for each namespace, so that a prompt finds its longest computed prefix, whoever computed it.
Where memory cannot be cut anywhere, prefixes end at `Checkpoints`, and there are no branches.
Idle sequences stay until cells or sequence numbers are needed; the least recently used goes first.
"""

import itertools
from collections.abc import Iterable, Sequence
from operator import attrgetter

from worker.engine.backend import Backend
from worker.engine.cache.branches import Branches
from worker.engine.cache.cached_blocks import CachedBlocks
from worker.engine.cache.checkpoints import Checkpoints
from worker.engine.cache.host_cache import MIN_TOKENS, HostCache
from worker.engine.cache.host_transfer import CopyTime, HostTransfer
from worker.engine.cache.index import SequenceIndex
from worker.engine.cache.radix import RadixMatch
from worker.engine.cache.sequences import MIN_SHARED, CachedPrefix, CacheLimits, Idle
from worker.engine.media import are_whole, count_positions, count_shared, whole_pieces
from worker.engine.sequence_state import HostCacheHit
from worker.engine.slot import BlockChain, CacheNamespace, Slot, SlotState
from worker.engine.stats import Counters

MIN_KEPT = 32
"""Minimum number of unshared tokens of an idle sequence that is kept: branches are few."""
MOST_CELLS = 0.75
"""Share of a GPU's cells above which idle sequences move to the host's memory. Source: with what
is left, a long prompt finds cells while they move."""


class PrefixCache:
    """Owns what slots and branches hold; used by the engine's thread only."""

    def __init__(
        self,
        backend: Backend,
        slots: Sequence[Slot],
        counters: Counters,
        limits: CacheLimits,
        *,
        is_on: bool,
    ) -> None:
        """Keep nothing unless `is_on`."""
        self._backend = backend
        self.is_unified = backend.is_unified
        self.slots = slots
        self.counters = counters
        self.blocks = CachedBlocks() if is_on else CachedBlocks(0)
        """The blocks that all sequences hold, as they are reported to gateways."""
        self.copies = CopyTime()
        self._host = HostCache(
            limits.host_bytes if is_on else 0,
            self.blocks,
            is_whole=not backend.states.can_cut,
            can_cut=not backend.states.needs_checkpoints,
        )
        self._transfer = HostTransfer(self._host, backend, self.copies)
        self._is_moving = False
        """Idle sequences are on their way to the host's memory."""
        self.checkpoints = Checkpoints(backend, slots, limits, self.copies)
        self.is_on = is_on
        self.can_share = is_on and backend.can_copy
        """Whether a slot can take what another one has read."""
        self.index = SequenceIndex()
        """The tokens of slots and branches; where checkpoints are needed, numbers of readings."""
        numbers = range(len(slots), backend.n_seq if is_on else 0)
        self.branches = Branches(backend, self.index, self.blocks, numbers)
        self._readings = itertools.count()
        self._n_uses = 0

    # ---- the index ----------------------------------------------------------------------------

    def note(self, slot: Slot) -> None:
        """Index the tokens that a slot has read, so that others may share them."""
        if not self.is_on or not slot.tokens:
            return
        new = slot.tokens[self.index.length(slot.id) :]
        if self.checkpoints.is_needed:
            # Slots that have read the same tokens apart hold them in cells of their own.
            new = [next(self._readings)] * len(new)
        self.index.extend(slot.id, slot.namespace, new)

    def find(
        self, namespace: CacheNamespace, prompt: Sequence[int], n_max: int
    ) -> CachedPrefix | None:
        """Find the sequence that holds most of a prompt's first `n_max` tokens, to take them."""
        if not self.can_share:
            return None
        match = self.holders(namespace, prompt[: n_max + 1])
        n = min(match.n, n_max)
        return CachedPrefix(min(match.keys), n) if n > 0 else None

    def holders(
        self, namespace: CacheNamespace, prompt: Sequence[int], *, are_own: bool = False
    ) -> RadixMatch:
        """Return how many leading tokens of a prompt can be had, and which sequences hold them.

        With checkpoints a slot can use more of its own than others can take: `are_own`.
        """
        if self.checkpoints.is_needed:
            return self.checkpoints.holders(namespace, prompt, are_own=are_own)
        return self.index.longest(namespace, prompt)

    def n_alike(self, namespace: CacheNamespace, prompt: Sequence[int]) -> int:
        """Return how many tokens another prompt begins with, too, if a checkpoint is of use there.

        Whether or not they can be had.
        """
        if not self.checkpoints.is_needed:
            return 0
        n_copied = self._host.n_alike(namespace, prompt)
        return max(n_copied, self.checkpoints.n_alike(namespace, prompt))

    @property
    def n_cells(self) -> int:
        """Cells in use; shared cells count once."""
        if not self.is_unified:
            return sum(len(slot.tokens) for slot in self.slots)
        unknown = (len(slot.tokens) - self.index.length(slot.id) for slot in self.slots)
        return self.index.n_tokens + sum(unknown)

    @property
    def n_held(self) -> int:
        """Tokens that running tasks hold; cells that they share count for each of them."""
        return sum(len(slot.tokens) for slot in self.slots if slot.state is not SlotState.IDLE)

    @property
    def n_evictable(self) -> int:
        """Cells that evicting would free; a lower bound where idle sequences share some."""
        idle = [slot.id for slot in self.slots if slot.state is SlotState.IDLE]
        if not (self.is_on and self.is_unified):
            return sum(len(self.slots[seq].tokens) for seq in idle)
        return sum(self.index.n_own(seq) for seq in (*self.branches.held, *idle))

    @property
    def n_host_bytes(self) -> int:
        """Bytes in the host's memory."""
        return self._host.n_bytes

    # ---- slots --------------------------------------------------------------------------------

    def tick(self) -> int:
        """Count a use and return its number; a higher number is more recent."""
        self._n_uses += 1
        return self._n_uses

    def cut(self, slot: Slot, n: int) -> int:
        """Remove all but the first `n` tokens of a slot; return how many it could keep."""
        if self.checkpoints.is_needed and 0 < n < len(slot.tokens):
            n = self.checkpoints.go_back(slot, n)
        else:
            self._backend.remove(slot.id, count_positions(slot.tokens[:n]))
        n_shared = count_shared(slot.tokens[n:])
        slot.n_saved -= n_shared
        del slot.tokens[n:]
        slot.n_shared = min(slot.n_shared, n)
        self.unindex(slot, n)
        return n

    def drop_part(self, slot: Slot) -> None:
        """Remove an image or a sound that a busy slot has read in part."""
        if slot.has_part:
            self.cut(slot, whole_pieces(slot.active.task.media, len(slot.tokens)))

    def unindex(self, slot: Slot, n: int = 0) -> None:
        """Remove a slot's tokens from `n` on from the index, because they are about to change."""
        self.report(slot, slot.chain.cut(n))
        slot.checkpoints = [each for each in slot.checkpoints if each.n <= n]
        self.index.cut(slot.id, n)

    def empty(self, slot: Slot) -> int:
        """Empty an idle slot; return how many tokens it had."""
        self._backend.remove(slot.id, 0)
        self.unindex(slot)
        return slot.forget()

    def report_prompt(self, slot: Slot) -> None:
        """Report the whole prompt of a slot's task: later tasks wait until it is read."""
        task = slot.active.task
        if task.params.cache_prompt:
            self.report(slot, BlockChain(task.chain, len(task.prompt)))

    def report_read(self, slot: Slot) -> None:
        """Report only as much of a slot's prompt as was read; its task has ended."""
        self.report(slot, slot.chain.cut(len(slot.tokens)))

    def _cut_prompt(self, slot: Slot, n: int) -> int:
        """Cut a busy slot; its whole prompt stays reported."""
        n = self.cut(slot, n)
        self.report_prompt(slot)
        return n

    def report(self, slot: Slot, chain: BlockChain) -> None:
        """Report the blocks of the prompt that a slot holds."""
        if chain != slot.chain:
            slot.chain = chain
            self.blocks.put(slot.id, chain)

    def keep(self, slot: Slot, n: int, *, to_host: bool = False) -> None:
        """Keep what an idle slot loses behind `n` tokens, as a branch or in the host's memory."""
        if not slot.tokens:
            return
        if not self.is_on:
            self._evicted(slot)
            return
        # As llama-server: with checkpoints the copy would be of all of it, and most of it stays.
        n_least = len(slot.tokens) // 2 if self.checkpoints.is_needed else MIN_KEPT
        if n > 0 and len(slot.tokens) - n <= n_least:
            return
        self.note(slot)
        # A task without `cache_prompt` leaves nothing, as in llama-server: the next such task finds
        # the same cells, so that sums are rounded alike.
        is_wanted = slot.last_params is None or slot.last_params.cache_prompt
        has_absorbed = is_wanted and self.branches.absorb(slot)
        own = min(self.index.n_own(slot.id), len(slot.tokens) - n)
        is_worth_it = not to_host and (has_absorbed or (is_wanted and own >= MIN_KEPT))
        if is_worth_it and (self.branches.free or self._evict_oldest(self.branches.held.values())):
            self.branches.add(slot)
        else:
            self._evicted(slot)

    @property
    def can_take_more(self) -> bool:
        """Whether a step has the time for one more slot to take a prefix."""
        return not self.checkpoints.is_needed or self.copies.has_time_for_checkpoint

    def take(self, slot: Slot, source: CachedPrefix, prompt: Sequence[int]) -> int:
        """Give a slot the first `source.n` tokens of its prompt; return how many are new to it."""
        start, more = len(slot.tokens), prompt[len(slot.tokens) : source.n]
        end = slot.n_pos + count_positions(more)
        self._backend.copy(source.seq, slot.id, slot.n_pos, end)
        if self.checkpoints.is_needed:
            if not self.checkpoints.share(self.slots[source.seq], slot, source.n):
                return self.cut(slot, 0) - start
            cells = self.index.tokens_of(source.seq)
            self.index.extend(slot.id, slot.namespace, cells[start : source.n])
        slot.append(more)
        if self.is_unified:
            slot.n_shared = max(slot.n_shared, source.n)
        self._use(source)
        self.note(slot)
        return source.n - start

    def find_copy(self, slot: Slot, n_max: int, n_min: int) -> HostCacheHit | None:
        """Find a copy in the host's memory of at least `n_min` tokens of a slot's prompt."""
        if len(slot.tokens) >= n_max:
            return None
        run = slot.active
        hit = self._host.find(slot.namespace, run.reading, n_max)
        if hit is None:
            return None
        n = whole_pieces(run.task.media, hit.n)  # a copy may end in an image
        if n < hit.n and self._host.is_whole:
            return None
        return hit._replace(n=n) if n >= n_min else None

    def restore(self, slot: Slot, hit: HostCacheHit) -> bool:
        """Copy more of a slot's prompt back; return whether that goes on in the next step.

        No image is left in part. Where no cells are free, that is all that comes back; other
        sequences make room only if they share the cache.
        """
        media, is_there = slot.active.task.media, True
        if self._host.is_whole:
            self._cut_prompt(slot, 0)
        start = at = len(slot.tokens)
        while is_there and at < hit.n and not (self.copies.is_over and are_whole(media, at)):
            end = self._transfer.put(slot, hit)
            if end > 0:
                slot.append(slot.active.reading[at:end])
                slot.checkpoints = [each for each in hit.checkpoints if each.n <= end]
                at = end
            else:
                is_there = self.is_unified and self.evict()
        if not is_there:
            at = self._cut_prompt(slot, whole_pieces(media, at))
        self.counters.n_restored += at - start
        self.note(slot)
        return is_there and at < hit.n

    def give_up(self, slot: Slot, *, copies: bool = True) -> None:
        """Free all cells of a busy slot; with `copies` the host's memory may keep a beginning."""
        self.drop_part(slot)
        if self.is_on and copies:
            self._transfer.save(slot, is_last=True)
        self.cut(slot, 0)

    def clear(self) -> None:
        """Drop everything, also the copies in the host's memory; running tasks hold nothing."""
        for old in self.idle():
            self._remove(old)
        self._transfer.clear()
        self._backend.clear()

    # ---- making room --------------------------------------------------------------------------

    def evict(self) -> bool:
        """Evict the least recently used idle sequence; return False if there is none."""
        return self._evict_oldest(self.idle())

    def begin_moving(self) -> None:
        """Let idle sequences move to the host's memory, except a few cells that only they hold.

        Each row of a batch reads all cells in use, of any sequence. On a GPU that costs less than
        to move them, so there they stay until most cells are in use.
        """
        self._is_moving = self.is_on and self.is_unified

    def move_idle(self) -> None:
        """Move on with idle sequences, the least recently used first.

        While prompts are read, that takes a small part of each step, unless what is left of them
        needs the cells.
        """
        n_most = MOST_CELLS * self.counters.n_kv if self._backend.is_gpu else 0
        if not self._is_moving or self.counters.n_kv_used <= n_most:
            return
        n_unread = sum(slot.n_prompt_left for slot in self.slots)
        if 0 < n_unread <= self.counters.n_kv - self.n_cells:
            self.copies.give_way()
        while not self.copies.is_over:
            movable = [
                old
                for old in self.idle()
                if self.index.n_own(old.id) >= MIN_TOKENS
                and self._transfer.can_hold(len(old.tokens))
            ]
            if not movable:
                self._is_moving = False
                return
            oldest = min(movable, key=attrgetter("last_used"))
            if self._transfer.save(oldest, is_last=False):
                self.counters.n_evicted += 1
                self._remove(oldest)

    # -------------------------------------------------------------------------------------------

    def _use(self, source: CachedPrefix) -> None:
        used = self.branches.held.get(source.seq)
        if used is not None:
            used.last_used = self.tick()
            return
        slot = self.slots[source.seq]
        if self.is_unified:
            slot.n_shared = max(slot.n_shared, source.n)
        if slot.state is SlotState.IDLE:
            slot.last_used = self.tick()

    def _evict_oldest(self, candidates: Iterable[Idle]) -> bool:
        """Evict a sequence; a copy goes to the host's memory if that has room."""
        oldest = min(candidates, key=attrgetter("last_used"), default=None)
        if oldest is None:
            return False
        self._evicted(oldest)
        self._remove(oldest)
        return True

    def idle(self) -> list[Idle]:
        """Return the idle sequences that hold tokens."""
        idle = [slot for slot in self.slots if slot.state is SlotState.IDLE and slot.tokens]
        return [*self.branches.held.values(), *idle]

    def _remove(self, old: Idle) -> None:
        if isinstance(old, Slot):
            self.empty(old)
        else:
            self.branches.drop(old)

    def _evicted(self, old: Idle) -> None:
        """Count a sequence that leaves the context; the host's memory may take a copy."""
        if self.is_on and self.index.n_own(old.id) < MIN_SHARED:
            return  # other sequences hold nearly all of it
        self.counters.n_evicted += 1
        # The copy of a whole cache stops all streams for as long as it takes.
        has_streams = any(slot.state is SlotState.DECODE for slot in self.slots)
        if self.is_unified or not has_streams or self.copies.has_time_for(len(old.tokens)):
            self._transfer.save(old, is_last=True)
