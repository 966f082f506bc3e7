"""Finds the task with which logits are NaN; all other tasks read their prompts again.

Attention multiplies the values of other sequences by zero, and NaN times zero is NaN. So one broken
sequence makes the logits of a whole batch NaN, and cells that hold NaN spoil every later answer.
Therefore the cache is emptied, all tasks of the batch become suspects, and they read their tokens
again one after the other. A suspect with which logits are numbers is cleared; one with which they
are NaN again fails. Tasks that came later wait for a suspect that runs: it must not fail for them.
"""

import logging
from collections.abc import Sequence

from protocol.errors import ErrorCode, TaskError
from worker.engine.backend import Backend, BatchRow
from worker.engine.cache.cache import PrefixCache
from worker.engine.results import SampleProcessor
from worker.engine.scheduling.preemption import Preemption, running
from worker.engine.slot import Slot, SlotState

logger = logging.getLogger(__name__)

NOT_A_NUMBER = "the model computed values that are not numbers"


class NanRecovery:
    """Checks the logits of each batch; used by the engine's thread only."""

    def __init__(
        self,
        backend: Backend,
        cache: PrefixCache,
        results: SampleProcessor,
        preemption: Preemption,
    ) -> None:
        self._backend = backend
        self._cache = cache
        self._slots = cache.slots
        self._results = results
        self._preemption = preemption

    def check(self, rows: Sequence[BatchRow]) -> bool:
        """Return whether logits of a batch are NaN; then the cache is empty, and nothing sampled.

        Otherwise the tasks of the rows are no suspects any more.
        """
        if not any(self._is_nan(index, row) for index, row in enumerate(rows)):
            for row in rows:
                self._slots[row.seq].active.is_suspect &= not row.wants_logits
            return False
        for row in rows:
            if (slot := self._slots[row.seq]).state is SlotState.DECODE:
                del slot.tokens[-len(row.tokens) :]  # they are still to be decoded
        self._read_again()
        return True

    def taking_part(self, busy: Sequence[Slot]) -> list[Slot]:
        """Leave out what has come after a suspect that runs, and has not shown its own logits."""
        suspects = [slot.active.order for slot in busy if slot.active.is_suspect]
        if not suspects:
            return list(busy)
        newest = max(suspects)
        return [
            slot for slot in busy if slot.state is SlotState.DECODE or slot.active.order <= newest
        ]

    def _is_nan(self, index: int, row: BatchRow) -> bool:
        """Whether a row's logits are NaN."""
        slot = self._slots[row.seq]
        on_device = slot.active.sampler.backend_sampling and slot.state is SlotState.DECODE
        return row.wants_logits and self._backend.is_broken(index, on_device=on_device)

    def _read_again(self) -> None:
        """Empty the cache, and preempt all tasks but the suspects, which fail."""
        busy = [slot for slot in running(self._slots) if slot not in self._results.finished]
        can_resume = self._preemption.can_resume
        failing = [slot for slot in busy if slot.active.is_suspect or not can_resume]
        for slot in failing:
            self._fail(slot)
        if not failing:
            action = "tasks read their prompts again one by one, to find whose fault it is"
            logger.warning("logits not numbers", extra={"action": action})
        for slot in busy:
            if slot not in failing:
                slot.active.is_suspect = not (failing or slot.active.pause_after_prefill)
                self._preemption.preempt(slot, copies=False)
        self._cache.clear()

    def _fail(self, slot: Slot) -> None:
        key, action = slot.active.task.key, "the task fails, others read their prompts again"
        logger.error("logits not numbers", extra={"task": key.id, "action": action})
        self._cache.counters.n_faults += 1
        self._results.fail(slot, TaskError(ErrorCode.INTERNAL, NOT_A_NUMBER))
