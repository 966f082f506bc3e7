"""One engine step: plan a batch, decode it, and hand each decoded row to `Results`."""

import logging
import time
from collections.abc import Sequence

from protocol.errors import ErrorCode, TaskError
from protocol.messages import Message
from worker.engine.backend import Backend, CacheFull, DecodeFailed, Row
from worker.engine.results import Results
from worker.engine.scheduler import MIN_CHUNK, Budget, Waiting, plan_chunks
from worker.engine.slot import Slot, SlotState
from worker.engine.stats import Counters

logger = logging.getLogger(__name__)


class Step:
    """Carries out steps over the slots; the engine releases those that `results.finished` names."""

    def __init__(
        self,
        backend: Backend,
        slots: Sequence[Slot],
        counters: Counters,
        budget: Budget,
        context_shift: bool,
    ) -> None:
        self._backend = backend
        self._slots = slots
        self._counters = counters
        self._budget = budget
        self._shifts = context_shift and backend.can_shift
        self._last_end = 0.0
        self._last_decode_end = 0.0
        self._n_failures = 0
        self.results = Results(backend, counters, self._shifts)
        self.number = 0
        self.started_s = 0.0
        self.slowest_s = 0.0
        self.is_broken = False

    def pause(self) -> None:
        """Say that no step follows at once, so that idle time is not counted as overhead."""
        self._last_end = self._last_decode_end = 0.0

    def run(self) -> list[Message]:
        """Do one step; return its messages."""
        self.started_s = time.monotonic()
        start = self._last_end or time.perf_counter()
        messages: list[Message] = []
        self._shift_full_slots()
        rows = self._compute(self._plan(), messages)
        for index, row in enumerate(rows):
            messages += self.results.take(self._slots[row.seq], index, row)
        self.number += 1
        self._last_end = time.perf_counter()
        self._account(rows, self._last_end - start)
        self.started_s = 0.0
        return messages

    # ---- planning -----------------------------------------------------------------------------

    def _plan(self) -> list[Row]:
        rows = [
            Row(slot.id, len(slot.tokens), (slot.active.pending,), True)
            for slot in self._slots
            if slot.state is SlotState.DECODE
        ]
        waiting = [
            Waiting(slot.id, slot.n_prompt_left, slot.active.order)
            for slot in self._slots
            if slot.state is SlotState.PREFILL
        ]
        chunks = plan_chunks(waiting, self._budget.tokens(len(rows)))
        return rows + [self._prompt_row(self._slots[chunk.slot], chunk.n) for chunk in chunks]

    def _prompt_row(self, slot: Slot, n: int) -> Row:
        prompt, start = slot.active.task.prompt, len(slot.tokens)
        is_last = start + n == len(prompt)
        return Row(slot.id, start, prompt[start : start + n], is_last)

    def _shift_full_slots(self) -> None:
        """Make room in full contexts by dropping tokens after `n_keep` (llama-server's rule)."""
        if not self._shifts:
            return
        for slot in self._slots:
            if slot.state is not SlotState.DECODE or len(slot.tokens) + 1 < slot.n_ctx:
                continue
            params, n_tokens = slot.active.task.params, len(slot.tokens)
            n_keep = len(slot.active.task.prompt) if params.n_keep < 0 else params.n_keep
            n_keep = min(slot.n_ctx - 4, n_keep + self._backend.vocabulary.add_bos)
            n_left = n_tokens - n_keep
            n_discard = min(params.n_discard or n_left // 2, max(0, n_left - 1))
            self._backend.shift(slot.id, n_keep, n_keep + n_discard)
            del slot.tokens[n_keep : n_keep + n_discard]
            slot.active.n_shifted += n_discard
            slot.active.generation.truncated = True

    # ---- decoding -----------------------------------------------------------------------------

    def _compute(self, rows: list[Row], messages: list[Message]) -> list[Row]:
        """Decode the rows, or as many of them as can be; return those that were."""
        while rows:
            decode_start = time.perf_counter()
            try:
                self._backend.decode(rows)
            except CacheFull:
                rows = self._make_room(rows, messages)
                continue
            except DecodeFailed as error:
                self._give_up(rows, error, messages)
                return []
            self._n_failures = 0
            self._count_decode(rows, decode_start)
            for row in rows:
                self._slots[row.seq].tokens.extend(row.tokens)
            return rows
        return []

    def _count_decode(self, rows: Sequence[Row], start: float) -> None:
        end = time.perf_counter()
        if self._last_decode_end:
            self._counters.gap_s += start - self._last_decode_end
        self._last_decode_end = end
        self._counters.decode_s += end - start
        self._counters.n_decode += 1
        self._counters.n_busy += len(rows)

    def _make_room(self, rows: list[Row], messages: list[Message]) -> list[Row]:
        """Free cells for a batch: idle caches, then smaller chunks, then the newest task."""
        cached = [s for s in self._slots if s.state is SlotState.IDLE and s.tokens]
        if cached:
            oldest = min(cached, key=lambda slot: slot.last_used)
            self._backend.remove(oldest.id, 0)
            oldest.tokens.clear()
            return rows
        if any(len(row.tokens) > MIN_CHUNK for row in rows):
            return [
                self._prompt_row(self._slots[row.seq], (len(row.tokens) + 1) // 2)
                if len(row.tokens) > 1
                else row
                for row in rows
            ]
        newest = max(rows, key=lambda row: self._slots[row.seq].active.order)
        error = TaskError(ErrorCode.INTERNAL, "Context size has been exceeded.")
        self.results.fail(self._slots[newest.seq], error, messages)
        return [row for row in rows if row.seq != newest.seq]

    def _give_up(self, rows: Sequence[Row], error: DecodeFailed, messages: list[Message]) -> None:
        self._n_failures += 1
        self.is_broken = error.fatal and self._n_failures >= 2
        logger.error("decode failed rows=%d error=%s", len(rows), error)
        for row in rows:
            self.results.fail(
                self._slots[row.seq], TaskError(ErrorCode.INTERNAL, str(error)), messages
            )

    def _account(self, rows: Sequence[Row], elapsed_s: float) -> None:
        n_prompt = sum(len(row.tokens) for row in rows if len(row.tokens) > 1)
        n_decoding = sum(len(row.tokens) == 1 for row in rows)
        self._budget.observe(n_decoding, n_prompt, elapsed_s)
        self._counters.step_s += elapsed_s
        self._counters.n_kv_used = sum(len(slot.tokens) for slot in self._slots)
        self.slowest_s = max(self.slowest_s, elapsed_s)
