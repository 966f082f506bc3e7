"""Which rows the next step computes: one of each decoding slot, and pieces of prompts.

On a GPU both go into one batch, for the weights are read once for all rows. On a CPU that holds for
small batches only. From a tile of rows on, its attention computes tile by tile, each against every
cell that any of its rows may see, so that seven single rows beside a piece of a prompt cost twice
what they cost in a batch of their own (docs/running/performance.md): then prompts and decoding
take turns.
"""

import time
from collections.abc import Sequence

from worker.engine.backend import Backend, BatchRow
from worker.engine.media import text_until
from worker.engine.prompt_logprobs import is_probed, rooms
from worker.engine.scheduling.pacing import PacingPlan, StreamPacer, plan_turn
from worker.engine.scheduling.scheduler import (
    NEARLY_ALL,
    TILE,
    WHOLE,
    StepBudget,
    Waiting,
    plan_chunks,
)
from worker.engine.self_extend import SelfExtend
from worker.engine.slot import Slot, SlotState
from worker.engine.speculation.draft import Speculator
from worker.engine.stats import Counters


class Planner:
    """Plans one step after the other; remembers whose turn it is."""

    def __init__(
        self, backend: Backend, budget: StepBudget, guessing: Speculator, extend: SelfExtend | None
    ) -> None:
        self._backend = backend
        self._budget = budget
        self._guessing = guessing
        self._extend = extend
        self._n_read = 0
        """Prompt tokens read since those that decode had their turn."""
        self._pace = StreamPacer()
        self.due_s = 0.0
        """When what the planned step says may leave (monotonic); 0 is at once."""

    def plan(self, able: Sequence[Slot], counters: Counters) -> list[BatchRow]:
        """Return the rows of the slots that may take part; none if all of them wait."""
        decoding = [slot for slot in able if slot.state is SlotState.DECODE]
        reading = [] if len(decoding) == len(able) else self._reading(able)
        is_due = self._n_read > 0 and not self._budget.takes_turns  # there was no room for both
        is_lone = bool(decoding and reading) and len(able) == len(decoding) + 1
        is_overdue = self._is_overdue(reading)
        self.due_s = 0.0
        if not is_lone:
            self._pace.end()
        if self._pace.goes_on:
            self.due_s = self._pace.go_on(time.monotonic())
            return self._guessing.rows(decoding)
        if not reading or (decoding and is_due):
            prompts = []
        else:
            prompts = self._read(reading, len(decoding), counters, is_overdue)
        n_prompt = sum(len(row.tokens) for row in prompts)
        self._pace.end()
        if not prompts or (decoding and self._go_together(len(decoding), n_prompt)):
            if is_lone and not prompts and not is_overdue:
                self._pace.begin(self._turn(decoding, reading[0][1], counters))
            self._n_read = 0
            return self._guessing.rows(decoding) + prompts
        self._n_read = self._n_read + n_prompt if decoding else 0
        return prompts

    def _turn(self, decoding: Sequence[Slot], n_left: int, counters: Counters) -> PacingPlan:
        """Plan how many steps the decoding slots have before the only prompt goes on."""
        is_seen = any(slot.active.unsaid is None for slot in decoding)
        if not is_seen or not self._budget.takes_turns:
            return PacingPlan()
        return plan_turn(self._budget, n_left, len(decoding), counters.n_kv_used)

    def _go_together(self, n_decoding: int, n_prompt: int) -> bool:
        """Tell whether decoding slots and pieces of prompts are one batch."""
        n_rows = n_decoding + self._guessing.most(n_decoding) + n_prompt
        is_faster = self._backend.is_gpu or n_decoding + n_prompt < TILE
        return is_faster and n_rows <= self._backend.n_batch

    def prompt_row(self, slot: Slot, n: int) -> BatchRow:
        """Return the next `n` tokens of a prompt."""
        run, start = slot.active, len(slot.tokens)
        is_last = start + n == len(run.reading)
        tokens = run.reading[start : start + n]
        wants_logits = is_last and not run.is_resumed
        return BatchRow(slot.id, slot.n_pos, tokens, wants_logits, is_probed=is_probed(slot))

    def _reading(self, able: Sequence[Slot]) -> list[tuple[Slot, int]]:
        """Return the slots that can read at once, and how much."""
        prompts = [
            (slot, self._n_ready(slot))
            for slot in able
            if slot.state is SlotState.PREFILL and not slot.active.is_undecided
        ]
        return [(slot, n) for slot, n in prompts if n]

    def _read(
        self,
        reading: Sequence[tuple[Slot, int]],
        n_decoding: int,
        counters: Counters,
        is_overdue: bool,
    ) -> list[BatchRow]:
        """Return pieces of prompts for a step that follows, or holds, so many decoded rows."""
        backend, budget = self._backend, self._budget
        n_spare = backend.n_outputs - backend.card.n_slots - self._guessing.most(n_decoding)
        spare = rooms([slot for slot, _ in reading], n_spare)
        now = time.perf_counter()
        waiting = [
            Waiting(
                slot.id,
                min(n, spare.get(slot.id, backend.n_batch)),
                slot.active.order,
                budget.is_late(slot.n_prompt_left, now - slot.active.started_s),
            )
            for slot, n in reading
        ]
        slots = {slot.id: slot for slot, _ in reading}
        is_pressing = budget.takes_turns and (len(waiting) > 1 or is_overdue)
        nearly = WHOLE if is_pressing else NEARLY_ALL
        n = budget.tokens(n_decoding, counters.n_kv_used, len(waiting), is_overdue)
        room = budget.room(n, n_decoding, counters.n_kv_used, nearly)
        if self._pace.n_tokens > n:
            n, room = self._pace.n_tokens, round(self._pace.n_tokens * NEARLY_ALL)
        n_read = (self._n_read if n_decoding else 0) if budget.takes_turns else None
        chunks = plan_chunks(waiting, n, room, n_read=n_read, nearly=nearly)
        return [self.prompt_row(slots[chunk.slot], chunk.n) for chunk in chunks]

    def _is_overdue(self, reading: Sequence[tuple[Slot, int]]) -> bool:
        """Tell whether somebody has waited for so long that reading itself does not explain it."""
        if not reading:
            return False
        now, is_late = time.perf_counter(), self._budget.is_late
        return any(
            is_late(slot.active.n_to_read, now - slot.active.started_s) for slot, _ in reading
        )

    def _n_ready(self, slot: Slot) -> int:
        """Count the prompt tokens that may be read at once: up to an image, or what has room."""
        n_text = text_until(slot.active.task.media, len(slot.tokens), slot.n_prompt_left)
        return n_text if self._extend is None else min(n_text, self._extend.room(slot))
