"""Finds cells when the cache is full: evicts, makes batches smaller, and preempts tasks."""

import logging
from collections.abc import Sequence

from protocol.errors import ErrorCode, TaskError
from worker.engine.backend import BatchRow
from worker.engine.cache.cache import PrefixCache
from worker.engine.results import SampleProcessor
from worker.engine.scheduling.budget import MIN_CHUNK
from worker.engine.scheduling.policy import prompt_row
from worker.engine.slot import Slot, SlotState

logger = logging.getLogger(__name__)


class Preemption:
    """Makes room for a batch that found no cells; used by the engine's thread only.

    A preempted task keeps its slot, sampler and text, and reads all that it had again later.
    """

    def __init__(self, cache: PrefixCache, results: SampleProcessor, *, can_resume: bool) -> None:
        """Without `can_resume` a task that does not fit fails instead."""
        self._cache = cache
        self._slots = cache.slots
        self._results = results
        self.can_resume = can_resume

    def make_room(self, rows: list[BatchRow]) -> list[BatchRow]:
        """Free cells and return the rows to try next.

        First an idle sequence goes, then drafts, then halves of prompts, then the newest task, or
        one that pauses: it may wait for those that run.
        """
        if self._cache.evict():
            return rows
        if any(row.is_draft for row in rows):
            return [row.without_draft() for row in rows]
        if any(len(row.tokens) > MIN_CHUNK for row in rows):
            return [self._halved(row) for row in rows]
        newest = self._give_way()
        return [row for row in rows if row.seq != newest.id]

    def make_room_for_media(self, slot: Slot) -> bool:
        """Free cells for the next image or sound of a slot; return whether to try it again now.

        First an idle sequence goes, then the newest task, which may be the slot's own.
        """
        return self._cache.evict() or self._give_way() is not slot

    def _give_way(self) -> Slot:
        """Preempt the newest task, or let it fail if it is alone; return its slot."""
        busy = [slot for slot in running(self._slots) if slot not in self._results.finished]
        newest = max(busy, key=lambda slot: (slot.is_paused, slot.active.order))
        if len(busy) > 1 and self.can_resume:
            self.preempt(newest)
        else:
            error = TaskError(ErrorCode.INTERNAL, "Context size has been exceeded.")
            self._results.fail(newest, error)
        return newest

    def resume(self) -> None:
        """Continue the oldest preempted task if all its tokens fit, or if no other task computes.

        Not while a suspect (`NanRecovery`) runs: suspects run one at a time.
        """
        if any(slot.active.is_suspect for slot in running(self._slots)):
            return
        preempted = [slot for slot in self._slots if slot.run is not None and slot.run.is_preempted]
        if not preempted:
            return
        slot = min(preempted, key=lambda slot: slot.active.order)
        n_free = self._cache.counters.n_kv - self._cache.n_cells + self._cache.n_evictable
        fits = n_free >= len(slot.active.reading) + MIN_CHUNK
        if fits or all(other.is_paused for other in running(self._slots)):
            slot.active.is_preempted, slot.active.awaits_prefix = False, True
            slot.active.n_recovered = 0
            self._cache.report_prompt(slot)

    def _halved(self, row: BatchRow) -> BatchRow:
        n = len(row.tokens)
        return row if n == 1 else prompt_row(self._slots[row.seq], (n + 1) // 2)

    def preempt(self, slot: Slot, *, copies: bool = True) -> None:
        """Let a task give its cells up; with `copies` the host's memory may keep what it had."""
        run = slot.active
        if slot.state is SlotState.DECODE:
            run.reading = list(slot.tokens)
        logger.info("task preempted", extra={"task": run.task.key.id, "n_past": len(slot.tokens)})
        self._cache.give_up(slot, copies=copies)
        slot.preempt()
        self._cache.counters.n_preempted += 1


def running(slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots whose tasks take part in steps."""
    return [slot for slot in slots if (run := slot.run) is not None and not run.is_preempted]
