"""One prompt, read once: a task takes the beginning of its prompt from whoever has computed it.

A task whose beginning is just being read by an older one waits for that, and one with the very same
prompt starts from the same logits: eight choices of one prompt, or eight users of one long system
prompt, cost one reading. What nobody holds any more may lie in the host's memory.

Shared cells have one position for all: `Slot.n_shared` says how far a slot's cells may belong to
others too, and such cells are never moved (see `Step`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from worker.engine.cache.cache import MIN_SHARED, PrefixCache, Source
from worker.engine.cache.prefix import common_prefix
from worker.engine.media import whole_pieces
from worker.engine.slot import Slot, SlotState, SlotTask

MIN_AHEAD = 4
"""Tokens beyond what can be taken now that are worth another step of waiting."""
MIN_RESTORED = 64
"""Tokens beyond what can be taken now that are worth a copy from the host's memory."""


class Promise(NamedTuple):
    """A slot that will have the first `n` tokens of a prompt."""

    slot: Slot
    n: int


class PrefixSharing:
    """Decides for each new task whether it reads its prompt, takes it, or waits for it."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._counters = cache.counters

    def settle(self, slots: Sequence[Slot]) -> None:
        """Let undecided slots, oldest first, take what there is or wait for more."""
        undecided = [slot for slot in slots if slot.run is not None and slot.run.is_undecided]
        for slot in sorted(undecided, key=lambda one: one.active.order):
            run = slot.active
            run.is_undecided = False
            if run.is_preempted or not run.task.params.cache_prompt:
                continue
            if self._cache.is_on and self._waits(slot, slots):
                run.is_undecided = True
                continue
            self._recover(slot)

    def identical_prompts(self, leader: Slot, slots: Sequence[Slot]) -> list[Slot]:
        """Give the whole prompt of a slot, just read, to those that wait for the same one."""
        if leader.active.is_resumed:
            return []
        found = [slot for slot in slots if slot.run is not None and slot.run.is_undecided]
        prompt, space = leader.active.task.prompt, leader.space
        alike = [
            slot
            for slot in found
            if slot.space == space and slot.active.reading == prompt and not slot.active.is_resumed
        ]
        for slot in alike:
            slot.active.is_undecided = False
            self._take(slot, Source(leader.id, len(prompt)))
        return alike

    def _waits(self, slot: Slot, slots: Sequence[Slot]) -> bool:
        """Tell whether another slot is about to have more of a prompt than can be had now."""
        run = slot.active
        if run.task.media:
            return False  # positions of an image are of no use in part
        others = [one for one in slots if one is not slot and one.space == slot.space]
        promised = promise(run, others)
        if promised is None:
            return False
        ready = self._cache.find(slot.space, run.reading, most(run))
        best = max(len(slot.tokens) + MIN_SHARED, ready.n + MIN_AHEAD if ready else 0)
        return promised.n >= best or is_twin(promised, run)

    def _recover(self, slot: Slot) -> None:
        """Take what the cache holds, or bring back what the host's memory holds."""
        run, n_before = slot.active, len(slot.tokens)
        ready = self._cache.find(slot.space, run.reading, most(run)) if self._cache.is_on else None
        n_ready = max(n_before, ready.n if ready else 0)
        n_most = whole_pieces(run.task.media, most(run))
        if n := self._cache.restore(slot, run.reading, n_most, n_ready + MIN_RESTORED):
            self._count(slot, n - n_before)
        elif ready is not None and ready.n >= least(slot):
            self._take(slot, ready)

    def _take(self, slot: Slot, source: Source) -> None:
        self._count(slot, self._cache.take(slot, source, slot.active.reading))

    def _count(self, slot: Slot, n: int) -> None:
        run = slot.active
        if run.is_resumed:
            run.n_recovered += n
        else:
            run.n_cached += n
        self._counters.n_cached += n


def most(run: SlotTask) -> int:
    """Return how many tokens may be taken: the last one is always read again."""
    return whole_pieces(run.task.media, len(run.reading) - 1)


def least(slot: Slot) -> int:
    """Return from how many tokens on taking is worth it; a prompt without a rest always is."""
    n_all = len(slot.active.reading) - 1
    return max(len(slot.tokens) + 1, min(len(slot.tokens) + MIN_SHARED, n_all))


def is_twin(promised: Promise, run: SlotTask) -> bool:
    """Tell whether another task has the very same prompt: its logits will do for both."""
    other = promised.slot.active
    is_new = not (run.is_resumed or other.is_resumed)
    return is_new and promised.n == len(run.reading) == len(other.reading)


def promise(run: SlotTask, others: Sequence[Slot]) -> Promise | None:
    """Find the older task that is reading most of a prompt and has not come to the end of it."""
    sources = [
        Promise(one, common_prefix(one.run.reading, run.reading))
        for one in others
        if one.run is not None
        and one.state is SlotState.PREFILL
        and one.run.order < run.order
        and not (one.run.is_undecided or one.run.is_preempted or one.run.task.media)
    ]
    reading = [source for source in sources if len(source.slot.tokens) < source.n]
    return max(reading, key=lambda source: source.n, default=None)
