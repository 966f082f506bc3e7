"""One engine step: plan a batch, decode it, and hand each decoded row to `SampleProcessor`."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Message
from worker.engine.adapters import Turns
from worker.engine.backend import Backend, BatchRow, CacheFull, DecodeFailed
from worker.engine.cache.eviction import EvictionPolicy
from worker.engine.cache.sharing import PrefixSharing
from worker.engine.results import SampleProcessor
from worker.engine.scheduling.plan import Planner
from worker.engine.scheduling.scheduler import MIN_CHUNK, TILE, StepBudget
from worker.engine.self_extend import SelfExtend
from worker.engine.slot import Slot, SlotState
from worker.engine.speculation.draft import Drafter, Speculator
from worker.engine.stats import EngineProgress

logger = logging.getLogger(__name__)

_COUNT_EVERY = 4
"""So many steps that only decode go by until cells are counted: it takes 30 us."""


@dataclass(frozen=True, slots=True)
class StepRules:
    """How steps behave, beside what the model can do."""

    context_shift: bool = False
    drafter: Drafter | None = None
    self_extend: SelfExtend | None = None
    spec_slots: int = 0
    """Guess ahead while at most this many slots decode: more rows pay only in small batches."""


class Step:
    """Carries out steps over the slots; the engine releases those that `results.finished` names."""

    def __init__(
        self,
        backend: Backend,
        rent: EvictionPolicy,
        budget: StepBudget,
        rules: StepRules,
        before: Callable[[], None],
    ) -> None:
        """`before` is called right before anything that takes long is computed."""
        self._before = before
        self._backend = backend
        self._cache = cache = rent.cache
        self._rent = rent
        self._slots = slots = cache.slots
        self._counters = cache.counters
        self._budget = budget
        guessing = Speculator(
            rules.drafter, n_slots=rules.spec_slots, n_rows=backend.n_outputs - len(slots)
        )
        self._planner = Planner(backend, budget, guessing, rules.self_extend)
        self._sharing = PrefixSharing(cache)
        self._extend = rules.self_extend
        self._shifts = rules.context_shift and backend.can_shift and self._extend is None
        self._last_end = self._last_decode_end = self._copied_s = 0.0
        self._n_steps = self._n_failures = 0
        self._n_looking = 0
        """Rows since the rent of idle texts was counted."""
        self._turns = Turns()
        self._able: list[Slot] = []
        """Slots whose tasks take part in this step."""
        self._said: list[Message] = []
        """Of the step that runs now."""
        self._n_faults = 0
        """Steps in a row that ended in an exception."""
        self.results = SampleProcessor(backend, cache, self._shifts)
        self.progress = EngineProgress()
        self.failure: str | None = None
        """Why no further step makes sense: the backend cannot be trusted any more."""
        self.due_s = 0.0
        """When what the last step said may leave (monotonic); 0 is at once."""

    def pause(self) -> None:
        """Say that no step follows at once, so that idle time is not counted as overhead."""
        self._last_end = self._last_decode_end = 0.0

    def run(self) -> list[Message]:
        """Do one step; return its messages. What raises an exception ends all tasks of the step."""
        self.progress.begin()
        self._said = []
        try:
            self._run(self._said)
            self._n_faults = 0
        except Exception as error:
            self._abandon(error)
        return self._said

    def _abandon(self, error: Exception) -> None:
        """Fail every task of a step that no single one can be blamed for."""
        self._n_faults += 1
        if self._n_faults > 1:
            self.failure = f"two steps in a row failed: {type(error).__name__}"
        for slot in self._running():
            if slot not in self.results.finished:
                fault = self._counters.fault(slot.active.task.task_id, error)
                self.results.fail(slot, fault, self._said)

    def _run(self, messages: list[Message]) -> None:
        if not self._last_end:
            self._begin()
        start, copied_s = self._last_end, self._copied_s
        is_reading = any(slot.state is SlotState.PREFILL for slot in self._slots)
        if is_reading:  # most steps only decode, and have nobody who is preempted or undecided
            self._resume()
            self._sharing.settle(self._slots)
            n_rows = sum(slot.n_prompt_left for slot in self._slots)
            self._rent.clear_way(n_rows, self._budget.cell_s)
        self._choose_adapters()
        self._shift_full_slots(messages)
        self._regroup()
        if is_reading:
            self._read_media(messages)
        rows = self._compute(self._planner.plan(self._able, self._counters), messages)
        self.due_s = self._planner.due_s
        if len(rows) > 1:
            self._sample_ahead(rows)
        for index, row in enumerate(rows):
            self._take(self._slots[row.seq], index, row, messages)
        self._n_steps += 1
        self._begin()
        copying_s = self._copied_s - copied_s  # which says nothing of what computing takes
        self._account(rows, self._last_end - start, copying_s)

    def _begin(self) -> None:
        """Let the time of a step begin: at the end of the one before, or now."""
        self._last_end, self._copied_s = time.perf_counter(), self._rent.copying_s

    # ---- before the batch ---------------------------------------------------------------------

    def _choose_adapters(self) -> None:
        """Decide which adapters this step runs with: slots that want others sit it out."""
        busy = self._running()
        if not self._backend.adapters.loaded:
            self._able = busy
            return
        scales = self._turns.choose((slot.scales, slot.active.order) for slot in busy)
        self._backend.adapters.use(scales)
        self._able = [slot for slot in busy if slot.scales == scales]

    def _read_media(self, messages: list[Message]) -> None:
        """Read one image or sound: it takes a batch of its own. The oldest task comes first."""
        reading = [slot for slot in self._able if slot.state is SlotState.PREFILL]
        ready = [slot for slot in reading if len(slot.tokens) in slot.active.task.media]
        if not ready:
            return
        slot = min(ready, key=lambda one: one.active.order)
        task, start = slot.active.task, len(slot.tokens)
        piece = task.media[start]
        self._before()
        try:
            self._backend.decode_media(slot.id, start, piece)
        except CacheFull:
            error = TaskError(ErrorCode.INTERNAL, "Context size has been exceeded.")
            self.results.fail(slot, error, messages)
        except DecodeFailed as error:
            self._give_up([BatchRow(slot.id, start, (), False)], error, messages)
        else:
            slot.tokens += task.prompt[start : start + piece.n_pos]
            self._cache.note(slot)

    def _shift_full_slots(self, messages: list[Message]) -> None:
        """Make room in full contexts by dropping tokens after `n_keep` (llama-server's rule)."""
        if not self._shifts:
            return
        for slot in self._slots:
            if slot.state is not SlotState.DECODE or len(slot.tokens) + 1 < slot.n_ctx:
                continue
            if slot.active.task.media:
                continue  # positions of an image cannot be moved in part
            params, n_tokens = slot.active.task.params, len(slot.tokens)
            n_keep = len(slot.active.task.prompt) if params.n_keep < 0 else params.n_keep
            n_keep = min(slot.n_ctx - 4, n_keep + self._backend.vocabulary.add_bos)
            n_left = n_tokens - n_keep
            n_discard = min(params.n_discard or n_left // 2, max(0, n_left - 1))
            if slot.n_shared > n_keep + n_discard and not self._unshare(slot, messages):
                continue
            self._cache.unindex(slot, n_keep)
            self._backend.shift(slot.id, n_keep, n_keep + n_discard)
            del slot.tokens[n_keep : n_keep + n_discard]
            slot.active.n_shifted += n_discard
            slot.active.generation.truncated = True

    def _regroup(self) -> None:
        """Let older tokens share positions, where a window has filled."""
        if self._extend is None:
            return
        for slot in self._slots:
            if slot.run is not None:
                for move in self._extend.regroup(slot):
                    self._backend.regroup(slot.id, move)

    def _unshare(self, slot: Slot, messages: list[Message]) -> bool:
        """Give a slot cells of its own: moving a shared one would move it for all its owners."""
        state = self._backend.states.copy(slot.id)
        if not self._backend.states.put(slot.id, state, len(slot.tokens)):
            error = TaskError(ErrorCode.INTERNAL, "no room to shift a context that others share")
            self.results.fail(slot, error, messages)
            return False
        slot.n_shared = 0
        return True

    # ---- decoding -----------------------------------------------------------------------------

    def _take(self, slot: Slot, index: int, row: BatchRow, messages: list[Message]) -> None:
        """Hand a decoded row over, also for those that waited for the same prompt."""
        if slot.state is SlotState.DECODE or not row.wants_logits:
            self._judge(slot, index, row, messages)
            return
        for one in (slot, *self._sharing.identical_prompts(slot, self._slots)):
            self._judge(one, index, row, messages)

    def _judge(self, slot: Slot, index: int, row: BatchRow, messages: list[Message]) -> None:
        """Take one task's next token; what goes wrong with it is that task's alone."""
        try:
            messages += self.results.take(slot, index, row)
        except Exception as error:
            fault = self._counters.fault(slot.active.task.task_id, error)
            self.results.fail(slot, fault, messages)

    def _sample_ahead(self, rows: Sequence[BatchRow]) -> None:
        """Let tokens of several slots be chosen at the same time, where that is faster."""
        plain = [
            (index, self._slots[row.seq].active.sampler)
            for index, row in enumerate(rows)
            if row.wants_logits and not row.is_draft
        ]
        if len(plain) > 1:
            self._backend.sample_ahead(plain)

    def _compute(self, rows: list[BatchRow], messages: list[Message]) -> list[BatchRow]:
        """Decode the rows, or as many of them as can be; return those that were."""
        self._before()
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
                slot = self._slots[row.seq]
                slot.tokens.extend(row.tokens)
                if slot.state is SlotState.PREFILL:
                    self._cache.note(slot)
            return rows
        return []

    def _count_decode(self, rows: Sequence[BatchRow], start: float) -> None:
        end = time.perf_counter()
        if self._last_decode_end:
            self._counters.gap_s += start - self._last_decode_end
        self._last_decode_end = end
        self._counters.decode_s += end - start
        self._counters.n_decode += 1
        self._counters.n_busy += len(rows)

    def _make_room(self, rows: list[BatchRow], messages: list[Message]) -> list[BatchRow]:
        """Free cells for a batch: idle caches, then smaller chunks, then the newest task."""
        if self._cache.evict():
            return rows
        if any(row.is_draft for row in rows):
            return [_without_guesses(row) for row in rows]
        if any(len(row.tokens) > MIN_CHUNK for row in rows):
            return [
                self._planner.prompt_row(self._slots[row.seq], (len(row.tokens) + 1) // 2)
                if len(row.tokens) > 1
                else row
                for row in rows
            ]
        newest = max(self._running(), key=lambda slot: slot.active.order)
        if len(self._running()) > 1 and self._extend is None:
            self._preempt(newest)
        else:
            error = TaskError(ErrorCode.INTERNAL, "Context size has been exceeded.")
            self.results.fail(newest, error, messages)
        return [row for row in rows if row.seq != newest.id]

    def _preempt(self, slot: Slot) -> None:
        """Let a task give its cells to older ones; it goes on when there is room again."""
        run = slot.active
        if slot.state is SlotState.DECODE:
            run.reading = list(slot.tokens)
        logger.info("preempted task=%d n_past=%d", run.task.task_id, len(slot.tokens))
        self._cache.give_up(slot)
        slot.preempt()
        self._counters.n_preempted += 1

    def _resume(self) -> None:
        """Let the oldest preempted task go on, if all that it had fits, or nobody else runs."""
        preempted = [slot for slot in self._slots if slot.run is not None and slot.run.is_preempted]
        if not preempted:
            return
        slot = min(preempted, key=lambda one: one.active.order)
        n_free = self._counters.n_kv - self._cache.n_cells + self._cache.n_evictable
        if n_free >= len(slot.active.reading) + MIN_CHUNK or not self._running():
            slot.active.is_preempted, slot.active.is_undecided = False, True
            slot.active.n_recovered = 0

    def _running(self) -> list[Slot]:
        """Slots whose tasks take part in steps."""
        return [
            slot for slot in self._slots if (run := slot.run) is not None and not run.is_preempted
        ]

    def _give_up(
        self, rows: Sequence[BatchRow], error: DecodeFailed, messages: list[Message]
    ) -> None:
        self._n_failures += 1
        if error.fatal and self._n_failures >= 2:
            self.failure = "llama.cpp failed to compute twice in a row"
        logger.error("decode failed rows=%d error=%s", len(rows), error)
        for row in rows:
            self.results.fail(
                self._slots[row.seq], TaskError(ErrorCode.INTERNAL, str(error)), messages
            )

    def _account(self, rows: Sequence[BatchRow], elapsed_s: float, copying_s: float) -> None:
        prompts = [len(row.tokens) for row in rows if len(row.tokens) > 1 and not row.is_draft]
        n_prompt, n_decoding = sum(prompts), len(rows) - len(prompts)
        counters, cache = self._counters, self._cache
        self._budget.observe(n_decoding, n_prompt, elapsed_s - copying_s, counters.n_kv_used)
        counters.step_s += elapsed_s
        self.progress.took(elapsed_s)
        # A CPU's tiles ask for each row and cell whether one may see the other: 0.16 us.
        looks = self._backend.cell_share > 0.0 or n_prompt < TILE
        self._n_looking += n_decoding + n_prompt * looks
        if not (prompts or self.results.finished) and self._n_steps % _COUNT_EVERY:
            return
        self._rent.expire(self._n_looking, self._budget.cell_s, self._budget.token_s)
        self._n_looking = 0
        counters.n_kv_used, counters.n_branches = cache.n_cells, cache.n_branches
        counters.n_host_bytes = cache.n_host_bytes


def _without_guesses(row: BatchRow) -> BatchRow:
    return row._replace(tokens=row.tokens[:1], is_draft=False) if row.is_draft else row
