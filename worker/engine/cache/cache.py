"""The prefix cache: which sequences hold which tokens, and which are evicted first.

A slot that takes a task unrelated to the tokens it holds gives these to a *branch*: a sequence
number beyond the slots', which then shares the cells. Slots and branches are indexed in one radix
tree for each namespace, so that a prompt finds its longest computed prefix, whoever computed it.
Idle sequences stay until cells or sequence numbers are needed; the least recently used goes first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from worker.engine.backend import Backend
from worker.engine.cache.cached_blocks import CachedBlocks
from worker.engine.cache.host_cache import MIN_TOKENS, HostCache
from worker.engine.cache.host_transfer import CopyTime, HostTransfer
from worker.engine.cache.radix import NOTHING, RadixMatch, RadixTree
from worker.engine.media import are_whole, whole_pieces
from worker.engine.sequence_state import HostCacheHit
from worker.engine.slot import BlockChain, CacheNamespace, Slot, SlotState
from worker.engine.stats import Counters

MIN_SHARED = 16
"""Minimum number of tokens to share. Source: fewer are read in the time that sharing takes."""
MIN_KEPT = 32
"""Minimum number of unshared tokens of an idle sequence that becomes a branch: branches are few."""
MOST_CELLS = 0.75
"""Share of a GPU's cells above which idle sequences move to the host's memory. Source: with what
is left, a long prompt finds cells while they move."""
MAX_SEQUENCES = 256
"""llama.cpp's own bound (LLAMA_MAX_SEQ)."""


def n_sequences(n_slots: int, n_branches: int) -> int:
    """Return how many sequences a context has: slots and branches."""
    return min(MAX_SEQUENCES, n_slots + n_branches)


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


Idle = CachedBranch | Slot
"""A sequence that no task uses."""


class PrefixCache:
    """Owns the branches and the index; used by the engine's thread only."""

    def __init__(
        self,
        backend: Backend,
        slots: Sequence[Slot],
        counters: Counters,
        *,
        is_on: bool = True,
        host_bytes: int = 0,
    ) -> None:
        """Keep nothing unless `is_on`; up to `host_bytes` also in the host's memory."""
        self._backend = backend
        self.slots = slots
        self.counters = counters
        self.blocks = CachedBlocks() if is_on else CachedBlocks(0)
        """The blocks that all sequences hold, as they are reported to gateways."""
        self.copies = CopyTime()
        is_whole = not backend.states.can_cut
        self._host = HostCache(host_bytes if is_on else 0, self.blocks, is_whole=is_whole)
        self._transfer = HostTransfer(self._host, backend.states, self.copies)
        self._is_moving = False
        """Idle sequences are on their way to the host's memory."""
        self.is_on = is_on and backend.can_copy
        self._free = list(range(backend.n_seq - 1, len(slots) - 1, -1)) if self.is_on else []
        self._branches: dict[int, CachedBranch] = {}
        self._trees: dict[CacheNamespace, RadixTree] = {}
        self._namespaces: dict[int, CacheNamespace] = {}
        self._n_uses = 0

    # ---- the index ----------------------------------------------------------------------------

    def note(self, slot: Slot) -> None:
        """Index the tokens that a slot has read, so that others may share them."""
        if not self.is_on or not slot.tokens:
            return
        namespace = self._namespaces.setdefault(slot.id, slot.namespace)
        tree = self._trees.setdefault(namespace, RadixTree())
        known = tree.length(slot.id)
        tree.extend(slot.id, slot.tokens[known:])

    def find(
        self, namespace: CacheNamespace, prompt: Sequence[int], n_max: int
    ) -> CachedPrefix | None:
        """Find the sequence that holds most of a prompt's first `n_max` tokens."""
        match = self.holders(namespace, prompt)
        n = min(match.n, n_max)
        return CachedPrefix(min(match.keys), n) if n > 0 else None

    def holders(self, namespace: CacheNamespace, prompt: Sequence[int]) -> RadixMatch:
        """Return how many leading tokens of a prompt are known, and which sequences hold them."""
        tree = self._trees.get(namespace)
        return NOTHING if tree is None else tree.longest(prompt)

    @property
    def n_cells(self) -> int:
        """Cells in use; shared cells count once."""
        n_known = sum(tree.n_tokens for tree in self._trees.values())
        unknown = (len(slot.tokens) - self._length(slot.id) for slot in self.slots)
        return n_known + sum(unknown)

    @property
    def n_held(self) -> int:
        """Tokens that running tasks hold; cells that they share count for each of them."""
        return sum(len(slot.tokens) for slot in self.slots if slot.state is not SlotState.IDLE)

    @property
    def n_evictable(self) -> int:
        """Cells that evicting would free; a lower bound where idle sequences share some."""
        idle = [slot.id for slot in self.slots if slot.state is SlotState.IDLE]
        own = sum(self.own(seq) for seq in (*self._branches, *idle))
        return own if self.is_on else sum(len(self.slots[seq].tokens) for seq in idle)

    @property
    def n_host_bytes(self) -> int:
        """Bytes in the host's memory."""
        return self._host.n_bytes

    @property
    def n_branches(self) -> int:
        """Branches in use."""
        return len(self._branches)

    # ---- slots --------------------------------------------------------------------------------

    def tick(self) -> int:
        """Count a use and return its number; a higher number is more recent."""
        self._n_uses += 1
        return self._n_uses

    def cut(self, slot: Slot, n: int) -> int:
        """Remove all but the first `n` tokens of a slot; return how many it could keep."""
        if not self._backend.remove(slot.id, n):
            n = 0  # recurrent memory cannot be cut: read it all again
            self._backend.remove(slot.id, 0)
        del slot.tokens[n:]
        slot.n_shared = min(slot.n_shared, n)
        self.unindex(slot, n)
        return n

    def unindex(self, slot: Slot, n: int = 0) -> None:
        """Remove a slot's tokens from `n` on from the index, because they are about to change."""
        self.report(slot, slot.chain.cut(n))
        if (namespace := self._namespaces.get(slot.id)) is None:
            return
        self._trees[namespace].cut(slot.id, n)
        if n == 0:
            self._forget_namespace(slot.id)

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
        """Keep an idle slot's tokens, of which it is about to remove all but the first `n`.

        They stay as a branch, or go to the host's memory.
        """
        if not slot.tokens:
            return
        if not self.is_on:
            self._evicted(slot)
            return
        self.note(slot)
        # A task without `cache_prompt` leaves nothing, as in llama-server: the next such task finds
        # the same cells, so that sums are rounded alike.
        is_wanted = slot.last_params is None or slot.last_params.cache_prompt
        has_absorbed = is_wanted and self._absorb(slot)
        own = min(self.own(slot.id), len(slot.tokens) - n)
        is_worth_it = has_absorbed or (is_wanted and own >= MIN_KEPT)
        if to_host or not is_worth_it or not (self._free or self._free_number()):
            self._evicted(slot)
            return
        seq, namespace = self._free.pop(), self._namespaces[slot.id]
        self._backend.copy(slot.id, seq, 0, len(slot.tokens))
        tokens = list(slot.tokens)
        branch = CachedBranch(seq, tokens, namespace, slot.chain, slot.last_used)
        self._branches[seq] = branch
        self.blocks.put(seq, branch.chain)
        self._namespaces[seq] = namespace
        self._trees[namespace].extend(seq, tokens)
        slot.n_shared = len(tokens)

    def take(self, slot: Slot, source: CachedPrefix, prompt: Sequence[int]) -> int:
        """Give a slot the first `source.n` tokens of its prompt; return how many are new to it."""
        start = len(slot.tokens)
        self._backend.copy(source.seq, slot.id, start, source.n)
        slot.tokens.extend(prompt[start : source.n])
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
        return hit._replace(n=n) if n >= n_min else None

    def restore(self, slot: Slot, hit: HostCacheHit) -> bool:
        """Copy more of a slot's prompt back; return whether that goes on in the next step.

        No image is left in part. Where no cells are free, that is all that comes back.
        """
        media, is_there = slot.active.task.media, True
        if self._host.is_whole:
            self._cut_prompt(slot, 0)
        start = at = len(slot.tokens)
        while is_there and at < hit.n and not (self.copies.is_over and are_whole(media, at)):
            end = self._transfer.put(slot.id, hit, at)
            if end > 0:
                slot.tokens += slot.active.reading[at:end]
                at = end
            else:
                is_there = self.evict()
        if not is_there:
            at = self._cut_prompt(slot, whole_pieces(media, at))
        self.counters.n_restored += at - start
        self.note(slot)
        return is_there and at < hit.n

    def give_up(self, slot: Slot, *, copies: bool = True) -> None:
        """Free all cells of a busy slot; with `copies` the host's memory may keep a beginning."""
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
        self._is_moving = self.is_on

    def move_idle(self) -> None:
        """Move on with idle sequences, the least recently used first.

        While prompts are read, that is one piece a step, unless what is left of them needs the
        cells.
        """
        n_most = MOST_CELLS * self.counters.n_kv if self._backend.is_gpu else 0
        if not self._is_moving or self.counters.n_kv_used <= n_most:
            return
        n_unread = sum(slot.n_prompt_left for slot in self.slots)
        if 0 < n_unread <= self.counters.n_kv - self.n_cells:
            self.copies.left_s = 0.0
        while not self.copies.is_over:
            movable = [
                old
                for old in self.idle()
                if self.own(old.id) >= MIN_TOKENS and self._transfer.can_hold(len(old.tokens))
            ]
            if not movable:
                self._is_moving = False
                return
            oldest = min(movable, key=attrgetter("last_used"))
            if self._transfer.save(oldest, is_last=False):
                self.counters.n_evicted += 1
                self._remove(oldest)

    # -------------------------------------------------------------------------------------------

    def _absorb(self, slot: Slot) -> bool:
        """Drop branches that are prefixes of a slot's tokens: earlier turns of a conversation."""
        tree = self._trees[self._namespaces[slot.id]]
        covered = [other for other in self._branches.values() if tree.is_covered(other.id, slot.id)]
        for branch in covered:
            self._drop(branch)
        return bool(covered)

    def _use(self, source: CachedPrefix) -> None:
        used = self._branches.get(source.seq)
        if used is not None:
            used.last_used = self.tick()
            return
        slot = self.slots[source.seq]
        slot.n_shared = max(slot.n_shared, source.n)
        if slot.state is SlotState.IDLE:
            slot.last_used = self.tick()

    def _free_number(self) -> bool:
        """Evict the least recently used branch to free its number."""
        return self._evict_oldest(self._branches.values())

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
        return [*self._branches.values(), *idle]

    def _remove(self, old: Idle) -> None:
        if isinstance(old, Slot):
            self.empty(old)
        else:
            self._drop(old)

    def _drop(self, branch: CachedBranch) -> None:
        self._backend.remove(branch.id, 0)
        self._trees[branch.namespace].cut(branch.id, 0)
        self._forget_namespace(branch.id)
        del self._branches[branch.id]
        self.blocks.put(branch.id, BlockChain())
        self._free.append(branch.id)

    def _evicted(self, old: Idle) -> None:
        """Count a sequence that leaves the context; the host's memory may take a copy."""
        if self.is_on and self.own(old.id) < MIN_SHARED:
            return  # other sequences hold nearly all of it
        self.counters.n_evicted += 1
        self._transfer.save(old, is_last=True)

    def own(self, seq: int) -> int:
        """Count the cells that no other sequence holds."""
        namespace = self._namespaces.get(seq)
        return self._trees[namespace].n_own(seq) if namespace is not None else 0

    def _length(self, seq: int) -> int:
        namespace = self._namespaces.get(seq)
        return self._trees[namespace].length(seq) if namespace is not None else 0

    def _forget_namespace(self, seq: int) -> None:
        namespace = self._namespaces.pop(seq)
        if not len(self._trees[namespace]):
            del self._trees[namespace]
