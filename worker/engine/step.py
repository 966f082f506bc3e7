"""One engine step: what comes before the batch, the batch itself, and the tokens chosen from it."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import TaskKey
from worker.engine.adapters import AdapterRotation, AdapterTask
from worker.engine.backend import Backend, BatchRow, CacheFull, DecodeFailed
from worker.engine.cache.cache import PrefixCache
from worker.engine.cache.context_room import ContextRoom
from worker.engine.cache.self_extend import SelfExtend
from worker.engine.cache.sharing import PrefixSharing
from worker.engine.media import MediaPiece, piece_at
from worker.engine.results import Outbox, SampleProcessor
from worker.engine.scheduling.budget import StepBudget
from worker.engine.scheduling.nan_recovery import NanRecovery
from worker.engine.scheduling.policy import MediaRows, StepPolicy
from worker.engine.scheduling.preemption import Preemption, running
from worker.engine.slot import Slot, SlotState
from worker.engine.stats import EngineProgress

logger = logging.getLogger(__name__)

_STEPS_PER_COUNT = 4
"""Steps that only decode between two counts of the cache's cells. Source: a count takes 30 us, a
step 10 ms."""


_UNKNOWN_S = 0.1
"""Seconds that a row of an image may take while no speed is known, as without a warm-up. Source: 8
billion parameters on two cores."""
_MAX_AHEAD = 2
"""Images and sounds that are encoded before any of their rows is read. Source: while one is read
and another one waits, the encoder delays nobody; each takes up to 300 MB."""


@dataclass(frozen=True, slots=True)
class StepRules:
    """How steps behave, beside what the model can do."""

    policy: StepPolicy
    budget: StepBudget
    context_shift: bool = False
    self_extend: SelfExtend | None = None


class Step:
    """Carries out steps over the slots; the engine releases those that `results.finished` names."""

    def __init__(
        self, backend: Backend, cache: PrefixCache, rules: StepRules, outbox: Outbox
    ) -> None:
        """The outbox is emptied before anything that takes long."""
        self._backend = backend
        self._cache = cache
        self._slots = cache.slots
        self._counters = cache.counters
        self._policy = rules.policy
        self._budget = rules.budget
        self._outbox = outbox
        extend = rules.self_extend
        self._room = ContextRoom(backend, cache, extend=extend, shifts=rules.context_shift)
        self.results = SampleProcessor(backend, cache, outbox, self._room.shifts)
        self._sharing = PrefixSharing(cache)
        # With self-extend, tokens that share positions cannot be read again as one prompt.
        self._preemption = Preemption(cache, self.results, can_resume=extend is None)
        self._nan_recovery = NanRecovery(backend, cache, self.results, self._preemption)
        self._adapter_rotation = AdapterRotation()
        self.awaits_encoder = False
        """The last step had nothing to compute until an image or a sound is encoded."""
        self._last_end = self._last_decode_end = 0.0
        self._media_start = self._decode_start = 0.0
        self._n_steps = 0
        self._n_failed_steps = 0
        """Steps in a row that ended in an exception."""
        self._n_failed_batches = 0
        """Batches in a row that the backend could not compute."""
        self.progress = EngineProgress()
        self.failure: str | None = None
        """Why no further step is possible: the backend is broken."""

    def pause(self) -> None:
        """Note that no step follows at once: time until then, and copies, do not count for it."""
        self._last_end = self._last_decode_end = 0.0
        self._cache.copies.end()

    def proceed(self, key: TaskKey) -> None:
        """Let a paused answer go on, now or when its tokens are read."""
        for slot in self._slots:
            run = slot.run
            if run is not None and run.task.key == key and run.pause_after_prefill:
                run.pause_after_prefill = False
                self.results.resume(slot)

    def run(self) -> None:
        """Do one step; an exception fails all tasks of the step."""
        self.progress.begin()
        try:
            self._run()
            self._n_failed_steps = 0
        except Exception as error:
            self._fail_all(error)
        finally:
            self._cache.copies.end()

    def _run(self) -> None:
        start = self._last_end or time.perf_counter()
        is_reading = any(slot.state is SlotState.PREFILL for slot in self._slots)
        self._begin_copies()
        if is_reading:  # most steps only decode: no task is preempted or awaits a prefix
            self._cache.checkpoints.make_due()
            self._preemption.resume()
            self._sharing.provide(self._slots)
        self._cache.move_idle()
        self._budget.copying_s = self._cache.copies.spent_s
        self._shift_full_contexts()
        runnable = self._choose_adapters()
        if is_reading:
            runnable = self._begin_encoding(runnable)
        plan = self._policy.plan(runnable, self._budget)
        n_media = 0 if plan.media is None else self._read_media(plan.media)
        rows = self._decode([row for row in plan.rows if self._takes_part(row)])
        encoder = self._backend.encoder
        has_computed = bool(rows or n_media)
        self.awaits_encoder = not has_computed and encoder is not None and encoder.started_s > 0
        if self._nan_recovery.check(rows):
            rows = []
        self._take_tokens(rows)
        self._n_steps += 1
        self._last_end = time.perf_counter()
        self._account(rows, n_media, self._last_end - start)

    def _fail_all(self, error: Exception) -> None:
        """Fail every task, for an exception that no single task caused."""
        self._n_failed_steps += 1
        if self._n_failed_steps > 1:
            self.failure = f"two steps in a row failed: {type(error).__name__}"
        for slot in running(self._slots):
            if slot not in self.results.finished:
                fault = self._counters.fault(slot.active.task.key, error)
                self.results.fail(slot, fault)
                error = error.with_traceback(None)  # the log has it with the first task

    # ---- before the batch ---------------------------------------------------------------------

    def _begin_copies(self) -> None:
        """Give the copies of this step the time that decoding leaves."""
        decoding = [slot for slot in self._slots if slot.state is SlotState.DECODE]
        n_decoding = sum(not slot.is_paused for slot in decoding)
        self._budget.copying_s = 0.0
        # Within the memory of a CPU copying is always faster than reading.
        read_s = self._budget.token_s if self._backend.is_gpu else 0.0
        self._cache.copies.begin(self._budget.spare_s(n_decoding), read_s)

    def _shift_full_contexts(self) -> None:
        for slot in self._room.make():
            message = "the context is full, and other requests share what a shift would drop"
            self.results.fail(slot, TaskError(ErrorCode.INTERNAL, message))

    def _choose_adapters(self) -> list[Slot]:
        """Apply a set of adapters and return the slots that use it: the others wait."""
        ended = self.results.finished
        busy = [slot for slot in running(self._slots) if not (slot.is_paused or slot in ended)]
        busy = self._nan_recovery.taking_part(busy)
        if not (busy and self._backend.adapters.loaded):
            return busy
        scales = self._adapter_rotation.choose(
            [AdapterTask(slot.scales, slot.active.order, slot.active.task.tenant) for slot in busy]
        )
        self._backend.adapters.use(scales)
        return [slot for slot in busy if slot.scales == scales]

    def _begin_encoding(self, runnable: list[Slot]) -> list[Slot]:
        """Let the next image or sound of each task be encoded, of the oldest task first.

        Return the slots that need not wait for that.
        """
        encoder = self._backend.encoder
        if encoder is None:
            return runnable
        waiting: list[Slot] = []
        n_ahead = 0
        for slot in sorted(runnable, key=lambda slot: slot.active.order):
            piece = _next_piece(slot)
            if piece is None:
                continue
            if encoder.is_ready(piece):
                n_ahead += not slot.has_part
                continue
            waiting.append(slot)
            if n_ahead < _MAX_AHEAD:
                encoder.begin(piece)
        return [slot for slot in runnable if slot not in waiting]

    def _read_media(self, part: MediaRows) -> int:
        """Read rows of an image or a sound; return how many.

        Other tasks, or its own, may be preempted for their cells.
        """
        n_before = len(part.slot.tokens)
        self._outbox.flush()
        self._media_start = time.perf_counter()
        self.progress.expect(part.n * (self._budget.token_s or _UNKNOWN_S))
        is_wanted = True
        while is_wanted and not self._has_read_media(part):
            is_wanted = self._preemption.make_room_for_media(part.slot)
        return max(0, len(part.slot.tokens) - n_before)

    def _has_read_media(self, part: MediaRows) -> bool:
        """Read them, or fail their task; return False if they found no cells."""
        slot, n_before = part.slot, len(part.slot.tokens)
        start = slot.n_pos - min(part.first, part.piece.n_pos)
        try:
            self._backend.decode_media(slot.id, start, part.piece, range(part.first, part.end))
        except CacheFull:
            return False
        except DecodeFailed as error:
            self._fail_batch([slot], error)
        else:
            slot.append(slot.active.task.prompt[n_before : n_before + part.n])
            self._count_read(slot, part.n)
        return True

    def _takes_part(self, row: BatchRow) -> bool:
        """Return whether the task of a row was neither preempted nor failed after the plan."""
        slot = self._slots[row.seq]
        return not slot.active.is_preempted and slot not in self.results.finished

    # ---- the batch ----------------------------------------------------------------------------

    def _decode(self, rows: list[BatchRow]) -> list[BatchRow]:
        """Decode the rows, or as many as find cells; return those that were decoded."""
        self._outbox.flush()
        while rows:
            self._decode_start = time.perf_counter()
            try:
                self._backend.decode(rows)
            except CacheFull:
                rows = self._preemption.make_room(rows)
                continue
            except DecodeFailed as error:
                self._fail_batch([self._slots[row.seq] for row in rows], error)
                return []
            self._n_failed_batches = 0
            self._counters.decoded(len(rows), self._decode_start, self._last_decode_end)
            self._last_decode_end = time.perf_counter()
            for row in rows:
                slot = self._slots[row.seq]
                slot.tokens.extend(row.tokens)
                if slot.state is SlotState.PREFILL:
                    self._count_read(slot, len(row.tokens))
            return rows
        return []

    def _count_read(self, slot: Slot, n: int) -> None:
        """Count tokens of a prompt that were computed."""
        self._counters.read(slot.active.account, n)
        if not slot.has_part:
            self._cache.note(slot)

    def _fail_batch(self, slots: Sequence[Slot], error: DecodeFailed) -> None:
        """Fail the tasks of a batch that was not computed."""
        self._n_failed_batches += 1
        if error.fatal and self._n_failed_batches >= 2:
            self.failure = "llama.cpp failed to compute twice in a row"
        logger.error(
            "decode failed",
            extra={
                "n_rows": len(slots),
                "cause": error,
                "action": "its tasks fail" if self.failure is None else "the worker ends",
            },
        )
        for slot in slots:
            self.results.fail(slot, TaskError(ErrorCode.INTERNAL, str(error)))

    # ---- after the batch ----------------------------------------------------------------------

    def _take_tokens(self, rows: Sequence[BatchRow]) -> None:
        """Choose the next token of each row that wants one; its task goes on or ends."""
        if len(rows) > 1:
            self._sample_ahead(rows)
        for index, row in enumerate(rows):
            slot = self._slots[row.seq]
            followers: list[Slot] = []
            if slot.state is SlotState.PREFILL and row.wants_logits:
                followers = self._sharing.identical_prompts(slot, self._slots)
            for other in (slot, *followers):
                self._take_token(other, index, row)

    def _sample_ahead(self, rows: Sequence[BatchRow]) -> None:
        """Let the backend choose tokens of several slots at the same time, where that is faster."""
        plain = [
            (index, self._slots[row.seq].active.sampler)
            for index, row in enumerate(rows)
            if row.wants_logits and not row.is_draft
        ]
        if len(plain) > 1:
            self._backend.sample_ahead(plain)

    def _take_token(self, slot: Slot, index: int, row: BatchRow) -> None:
        """Take a decoded row for one task; an exception fails that task only."""
        try:
            self.results.take(slot, index, row)
        except Exception as error:
            fault = self._counters.fault(slot.active.task.key, error)
            self.results.fail(slot, fault)

    def _account(self, rows: Sequence[BatchRow], n_media: int, elapsed_s: float) -> None:
        prompts = [len(row.tokens) for row in rows if len(row.tokens) > 1 and not row.is_draft]
        if rows or n_media:  # copies before that are not part of the time per token
            computing_s = self._last_end - (self._media_start if n_media else self._decode_start)
            self._budget.observe(len(rows) - len(prompts), sum(prompts) + n_media, computing_s)
        counters, cache = self._counters, self._cache
        counters.step_s += elapsed_s
        self.progress.took(elapsed_s)
        if prompts or self.results.finished or self._n_steps % _STEPS_PER_COUNT == 0:
            counters.n_kv_used, counters.n_branches = cache.n_cells, len(cache.branches.held)
            counters.n_kv_busy = min(cache.n_held, counters.n_kv_used)
            counters.n_host_bytes = cache.n_host_bytes


def _next_piece(slot: Slot) -> MediaPiece | None:
    """Return the image or sound of which a slot reads rows next."""
    if slot.state is not SlotState.PREFILL or slot.active.awaits_prefix:
        return None
    found = piece_at(slot.active.task.media, len(slot.tokens))
    return None if found is None else found[1]
