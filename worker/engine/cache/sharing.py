"""Tasks with a common prefix read it once: they take it from the sequence that has computed it.

A task waits for an older one that is reading the same prefix, and tasks with the same prompt start
from the same logits. So eight choices of one prompt, or eight users of one long system prompt, cost
one reading. A prefix that no sequence holds may be in the host's memory.

A shared cell has one position for all its owners. `Slot.n_shared` bounds the cells of a slot that
may be shared, and these are never moved (`ContextRoom`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from worker.engine.cache.cache import PrefixCache
from worker.engine.cache.prefix import common_prefix
from worker.engine.cache.sequences import MIN_SHARED, CachedPrefix, min_copied
from worker.engine.media import whole_pieces
from worker.engine.sequence_state import HostCacheHit
from worker.engine.slot import Slot, SlotState, SlotTask

MIN_RESTORED = 32
"""Minimum number of tokens that a copy in host memory has beyond the prefix in the context."""


class ExpectedPrefix(NamedTuple):
    """A slot that will hold the first `n` tokens of a prompt."""

    slot: Slot
    n: int


class _Wait(NamedTuple):
    """What a task waits for, and the tasks that read prompts when that was found."""

    expected: ExpectedPrefix
    order: int
    """Admission number of the task of the slot."""
    readers: frozenset[int]


class PrefixSharing:
    """Decides for each new task whether it reads its prompt, takes a prefix, or waits for one."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._counters = cache.counters
        self._waits: dict[int, _Wait] = {}
        """By the admission number of the task that waits: to look for a prompt among others in
        each step costs the length of all of them."""

    def provide(self, slots: Sequence[Slot]) -> None:
        """Let slots that await their prefix, oldest first, take what is cached or wait for more.

        At least one takes what it can. Others wait for the next step if they need checkpoints, and
        this step has no time to copy more of them.
        """
        has_taken = False
        awaiting = [slot for slot in slots if slot.run is not None and slot.run.awaits_prefix]
        known, self._waits = self._waits, {}
        readers = frozenset(slot.active.order for slot in slots if _is_reading(slot))
        for slot in sorted(awaiting, key=lambda slot: slot.active.order):
            run = slot.active
            run.awaits_prefix = False
            if run.is_preempted or not run.task.params.cache_prompt:
                continue
            if run.restoring is not None:
                self._restore(slot, run.restoring)
            elif has_taken and not self._cache.can_take_more:
                run.awaits_prefix = True
            elif self._cache.can_share and (
                wait := self._wait(slot, slots, readers, known.get(run.order))
            ):
                run.awaits_prefix = True
                self._waits[run.order] = wait
            else:
                self._recover(slot)
                has_taken = True
                readers |= {run.order}
        if awaiting:
            self._cache.begin_moving()

    def identical_prompts(self, leader: Slot, slots: Sequence[Slot]) -> list[Slot]:
        """Give a slot's prompt, just read, to the slots that wait for the same one; return them."""
        if leader.active.is_resumed:
            return []
        found = [slot for slot in slots if slot.run is not None and is_waiting(slot.run)]
        prompt, namespace = leader.active.task.prompt, leader.namespace
        alike = [
            slot
            for slot in found
            if slot.namespace == namespace
            and slot.active.reading == prompt
            and not slot.active.is_resumed
        ]
        for slot in alike:
            slot.active.awaits_prefix = False
            self._take(slot, CachedPrefix(leader.id, len(prompt)))
        return alike

    def _wait(
        self, slot: Slot, slots: Sequence[Slot], readers: frozenset[int], known: _Wait | None
    ) -> _Wait | None:
        """Return what to wait for: another slot will soon hold more of a prompt than is cached now.

        That is what is `known` from an earlier step, as long as the same tasks read.
        """
        if known is not None and known.readers == readers and self._is_far(slot, known):
            return known
        expected = self._expected(slot, slots)
        if expected is None:
            return None
        return _Wait(expected, expected.slot.active.order, readers)

    def _is_far(self, slot: Slot, wait: _Wait) -> bool:
        """Return whether much is missing still of what a slot waits for."""
        source, n = wait.expected
        if source.run is None or source.run.order != wait.order or not _is_reading(source):
            return False
        return len(source.tokens) + self._min_shared(slot) < n

    def _expected(self, slot: Slot, slots: Sequence[Slot]) -> ExpectedPrefix | None:
        run = slot.active
        if run.task.media:
            return None  # a part of an image cannot be shared
        others = [
            other for other in slots if other is not slot and other.namespace == slot.namespace
        ]
        expected = expected_prefix(run, others)
        if expected is None:
            return None
        ready = self._cache.find(slot.namespace, run.reading, max_reused(run))
        n_now = max(len(slot.tokens), ready.n if ready else 0)
        is_free = self._cache.is_unified and has_same_prompt(expected, run)
        if expected.n < n_now + self._min_shared(slot) and not is_free:
            return None
        self._cache.checkpoints.stop_at(expected.slot.active, expected.n)
        return expected

    def _recover(self, slot: Slot) -> None:
        """Take the prefix from the cache, or from the host's memory if that holds more."""
        run = slot.active
        ready = self._cache.find(slot.namespace, run.reading, max_reused(run))
        n_ready = max(len(slot.tokens), ready.n if ready else 0)
        hit = self._cache.find_copy(slot, max_reused(run), n_ready + MIN_RESTORED)
        if ready is not None and ready.n >= self._min_reused(slot, ready):
            self._take(slot, ready)
        if hit is not None:
            self._restore(slot, hit)

    def _min_reused(self, slot: Slot, ready: CachedPrefix) -> int:
        """Return the minimum length of a prefix worth taking.

        A whole prompt always is, except where that copies a cache.
        """
        n = len(slot.tokens)
        if not self._cache.is_unified:
            return n + self._min_shared(slot)
        return max(n + 1, min(n + MIN_SHARED, len(slot.active.reading) - 1))

    def _min_shared(self, slot: Slot) -> int:
        """Return the minimum number of tokens to take of another slot."""
        return MIN_SHARED if self._cache.is_unified else min_copied(slot.n_ctx)

    def _restore(self, slot: Slot, hit: HostCacheHit) -> None:
        """Copy more of the prefix back; the slot waits while some is missing."""
        run, n_before = slot.active, len(slot.tokens)
        run.awaits_prefix = self._cache.restore(slot, hit)
        run.restoring = hit if run.awaits_prefix else None
        self._count(slot, len(slot.tokens) - n_before)

    def _take(self, slot: Slot, source: CachedPrefix) -> None:
        self._count(slot, self._cache.take(slot, source, slot.active.reading))

    def _count(self, slot: Slot, n: int) -> None:
        run = slot.active
        if run.is_resumed:
            run.n_recovered += n
        else:
            run.n_cached += n
        self._counters.reused(run.account, n)


def is_waiting(run: SlotTask) -> bool:
    """Return whether a task waits for what another one reads."""
    return run.awaits_prefix and run.restoring is None and not run.is_preempted


def _is_reading(slot: Slot) -> bool:
    """Return whether a slot reads its prompt now."""
    run = slot.run
    if run is None or slot.state is not SlotState.PREFILL:
        return False
    return not (is_waiting(run) or run.is_preempted)


def max_reused(run: SlotTask) -> int:
    """Return the maximum number of tokens to take: all but the last, whose logits are needed."""
    return whole_pieces(run.task.media, len(run.reading) - 1)


def has_same_prompt(expected: ExpectedPrefix, run: SlotTask) -> bool:
    """Return whether another task has the same prompt, so that its logits serve both."""
    other = expected.slot.active
    is_new = not (run.is_resumed or other.is_resumed)
    return is_new and expected.n == len(run.reading) == len(other.reading)


def expected_prefix(run: SlotTask, others: Sequence[Slot]) -> ExpectedPrefix | None:
    """Find the older task that is still reading the longest common prefix with a prompt."""
    sources = [
        ExpectedPrefix(other, common_prefix(other.run.reading, run.reading))
        for other in others
        if other.run is not None
        and other.run.order < run.order
        and _is_reading(other)
        and not other.run.task.media
    ]
    reading = [source for source in sources if len(source.slot.tokens) < source.n]
    return max(reading, key=lambda source: source.n, default=None)
