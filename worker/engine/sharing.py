"""One prompt, read once: a slot takes the beginning of its prompt from a slot that holds it.

In a unified cache a cell can belong to several sequences, so taking costs nothing. A slot whose
beginning is just being read by an older task waits for that, and one with the very same prompt
starts from the same logits: eight choices of one prompt, or eight users of one long system prompt,
cost one reading.

Shared cells have one position for all: `Slot.n_shared` says how far a slot's cells may belong to
others too, and such cells are never moved (see `Step`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from worker.engine.backend import Backend
from worker.engine.prefix import common_prefix
from worker.engine.slot import Run, Slot, SlotState
from worker.engine.stats import Counters

MIN_SHARED = 16
"""Fewer tokens are read as soon as they are taken."""
MIN_AHEAD = 4
"""Tokens beyond what can be taken now that are worth another step of waiting."""


class Source(NamedTuple):
    """Who has, or will have, the first `n` tokens of a prompt."""

    slot: Slot
    n: int


class Sharing:
    """Decides for each new task whether it reads its prompt, takes it, or waits for it."""

    def __init__(self, backend: Backend, counters: Counters, *, is_on: bool = True) -> None:
        self._backend = backend
        self._is_on = is_on and backend.can_copy
        self._counters = counters

    def settle(self, slots: Sequence[Slot]) -> None:
        """Let undecided slots, oldest first, take what there is or wait for more."""
        undecided = [slot for slot in slots if slot.run is not None and slot.run.is_undecided]
        for slot in sorted(undecided, key=lambda one: one.active.order):
            run = slot.active
            run.is_undecided = False
            if not self._is_on or not run.task.params.cache_prompt or run.task.media:
                continue
            others = [one for one in slots if one is not slot and one.scales == slot.scales]
            ready, promised = held(run, others), promise(run, others)
            best = max(len(slot.tokens) + MIN_SHARED, ready.n + MIN_AHEAD if ready else 0)
            if promised is not None and (promised.n >= best or is_twin(promised, run)):
                run.is_undecided = True
            elif ready is not None and ready.n >= least(slot):
                self._take(slot, ready)

    def twins(self, leader: Slot, slots: Sequence[Slot]) -> list[Slot]:
        """Give the whole prompt of a slot, just read, to those that wait for the same one."""
        found = [slot for slot in slots if slot.run is not None and slot.run.is_undecided]
        prompt, scales = leader.active.task.prompt, leader.scales
        alike = [s for s in found if s.scales == scales and s.active.task.prompt == prompt]
        for slot in alike:
            slot.active.is_undecided = False
            self._take(slot, Source(leader, len(prompt)))
        return alike

    def _take(self, slot: Slot, source: Source) -> None:
        start = len(slot.tokens)
        self._backend.copy(source.slot.id, slot.id, start, source.n)
        slot.tokens.extend(source.slot.tokens[start : source.n])
        for one in (slot, source.slot):
            one.n_shared = max(one.n_shared, source.n)
        slot.active.n_cached += source.n - start
        self._counters.n_cached += source.n - start


def least(slot: Slot) -> int:
    """Return from how many tokens on taking is worth it; a prompt without a rest always is."""
    n_all = len(slot.active.task.prompt) - 1
    return max(len(slot.tokens) + 1, min(len(slot.tokens) + MIN_SHARED, n_all))


def is_twin(source: Source, run: Run) -> bool:
    """Tell whether another task has the very same prompt: its logits will do for both."""
    return source.n == len(run.task.prompt) == len(source.slot.active.task.prompt)


def held(run: Run, others: Sequence[Slot]) -> Source | None:
    """Find the slot that holds most of a prompt; its last token is always read again."""
    n_most = len(run.task.prompt) - 1
    sources = [
        Source(one, min(n_most, common_prefix(one.tokens, run.task.prompt))) for one in others
    ]
    return max(sources, key=lambda source: source.n, default=None)


def promise(run: Run, others: Sequence[Slot]) -> Source | None:
    """Find the older task that is reading most of a prompt and has not come to the end of it."""
    sources = [
        Source(one, common_prefix(one.run.task.prompt, run.task.prompt))
        for one in others
        if one.run is not None
        and one.state is SlotState.PREFILL
        and one.run.order < run.order
        and not (one.run.is_undecided or one.run.task.media)
    ]
    reading = [source for source in sources if len(source.slot.tokens) < source.n]
    return max(reading, key=lambda source: source.n, default=None)
