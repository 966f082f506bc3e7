"""What the next step computes: one row of each decoding slot, then pieces of prompts.

`StepPolicy.plan` alone decides that; `Step` carries it out and changes nothing of it, unless the
cache is full.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from worker.engine.backend import Backend, BatchRow
from worker.engine.cache.self_extend import SelfExtend
from worker.engine.media import MediaPiece, piece_at, text_until
from worker.engine.prompt_logprobs import is_probed, read_limits
from worker.engine.scheduling.budget import StepBudget
from worker.engine.slot import Slot, SlotState
from worker.engine.speculation.draft import Speculator

MIN_PART = 64
"""Minimum number of rows of a part of an image. Source: a CPU's attention computes fewer rows by
another kernel of llama.cpp, which rounds otherwise; and each part is a pass over all weights."""


class MediaRows(NamedTuple):
    """Rows of an image or a sound in the prompt of a slot, which are a batch of their own."""

    slot: Slot
    piece: MediaPiece
    first: int
    """How many of its rows were read before."""
    n: int

    @property
    def end(self) -> int:
        """How many of its rows have been read after this step."""
        return self.first + self.n


@dataclass(slots=True)
class StepPlan:
    """What a step computes: the rows of a batch, and before it at most one part of an image."""

    rows: list[BatchRow] = field(default_factory=list)
    media: MediaRows | None = None

    def add(self, slot: Slot, n: int, n_batch: int) -> int:
        """Add about `n` tokens of a slot's prompt; return how many were added."""
        found = piece_at(slot.active.task.media, len(slot.tokens))
        if n == 0 or (found is not None and self.media is not None):
            return 0
        if found is None:
            self.rows.append(prompt_row(slot, n))
            return n
        start, piece = found
        first = len(slot.tokens) - start
        n = piece.rows if piece.is_undivided else min(part_rows(n, piece.rows - first), n_batch)
        self.media = MediaRows(slot, piece, first, n)
        return n


class StepPolicy:
    """Decodes every slot in each step and fills the step's time with prompts, in one batch.

    Where a batch may have one sequence only, slots take turns.
    """

    def __init__(
        self, backend: Backend, speculator: Speculator, extend: SelfExtend | None = None
    ) -> None:
        self._n_batch = backend.n_batch
        self._n_outputs = backend.n_outputs
        self._n_slots = backend.card.n_slots
        self._speculator = speculator
        self._extend = extend
        self._can_batch = backend.can_batch
        self._turn = 0
        """Where a batch may have one slot only: the first busy one from this number on is next."""

    def plan(self, slots: Sequence[Slot], budget: StepBudget) -> StepPlan:
        """Return the decoding slots' rows, then prompts in the order of `reading_order`.

        `slots` are the busy ones that may take part; each has at most one row. No row at all means
        that each slot waits for what another one reads.
        """
        if self._can_batch:
            return self._plan(slots, budget)
        for slot in sorted(slots, key=lambda slot: (slot.id - self._turn) % self._n_slots):
            plan = self._plan([slot], budget)
            if plan.rows or plan.media:
                self._turn = slot.id + 1
                return plan
        return StepPlan()

    def _plan(self, slots: Sequence[Slot], budget: StepBudget) -> StepPlan:
        decoding = [slot for slot in slots if slot.state is SlotState.DECODE]
        prompts = StepPlan()
        if len(decoding) < len(slots):
            prompts = self._prompts(slots, decoding, budget)
        n_free = self._n_batch - len(decoding) - sum(len(row.tokens) for row in prompts.rows)
        return StepPlan(self._speculator.rows(decoding, n_free) + prompts.rows, prompts.media)

    def _prompts(
        self, slots: Sequence[Slot], decoding: Sequence[Slot], budget: StepBudget
    ) -> StepPlan:
        """Return pieces of prompts, up to the budget beside the tokens of `decoding`."""
        n_streams = sum(slot.active.response is None for slot in decoding)
        # A task that pauses after its prompt is not waiting for its first token.
        n_waiting = sum(
            not (waiting.active.pause_after_prefill or waiting in decoding) for waiting in slots
        )
        n_left = budget.tokens(len(decoding), is_short=n_streams >= n_waiting)
        readable = self._readable(reading_order(slots, budget.token_s), len(decoding))
        plan = StepPlan()
        for slot, n_readable in readable:
            n = _without_single(min(n_left, n_readable), n_readable)
            n_left = max(0, n_left - plan.add(slot, n, budget.n_batch))
        if readable and not (plan.rows or plan.media):
            plan.add(readable[0][0], 1, budget.n_batch)
        return plan

    def _readable(self, reading: Sequence[Slot], n_decoding: int) -> list[tuple[Slot, int]]:
        """Return the slots that can read now, and how many tokens each can read at most."""
        found = [(slot, n) for slot in reading if (n := self._n_readable(slot))]
        n_spare = self._n_outputs - self._n_slots - self._speculator.max_drafted(n_decoding)
        limits = read_limits([slot for slot, _ in found], n_spare)
        return [(slot, min(n, limits.get(slot.id, n))) for slot, n in found]

    def _n_readable(self, slot: Slot) -> int:
        """Count a slot's prompt tokens up to the next image, sound or stop, and up to its room.

        In an image or a sound, those are the rows that are left of it.
        """
        n, at, media = slot.n_prompt_left, len(slot.tokens), slot.active.task.media
        if slot.active.is_resumed:
            n = min(n, slot.room)
        if found := piece_at(media, at):
            start, piece = found
            n = start + piece.rows - at
        else:
            n = slot.active.until_stop(at, text_until(media, at, n))
        return n if self._extend is None else min(n, self._extend.room(slot))


def reading_order(slots: Sequence[Slot], token_s: float) -> list[Slot]:
    """Return the slots that read prompts, by arrival time plus the time that reading takes.

    So a short prompt overtakes a long one, but not for ever: a prompt that has waited as long as
    its reading takes is not overtaken by later ones.
    """
    reading = [
        slot for slot in slots if slot.state is SlotState.PREFILL and not slot.active.awaits_prefix
    ]
    return sorted(
        reading,
        key=lambda slot: (
            slot.active.started_s + slot.active.n_to_read * token_s,
            slot.active.order,
        ),
    )


def part_rows(n: int, n_left: int) -> int:
    """Return how many of `n_left` rows to read: at most `n`, in parts that are about equal.

    More than `n` where a part would have less than `MIN_PART`.
    """
    n_parts = max(1, min(-(-n_left // n), n_left // MIN_PART))
    return -(-n_left // n_parts)


def prompt_row(slot: Slot, n: int) -> BatchRow:
    """Return the next `n` tokens of a slot's prompt."""
    run, start = slot.active, len(slot.tokens)
    wants_logits = start + n == len(run.reading) and not run.is_resumed
    tokens = run.reading[start : start + n]
    return BatchRow(slot.id, slot.n_pos, tokens, wants_logits, is_probed=is_probed(slot))


def _without_single(n: int, n_left: int) -> int:
    """Return how many of `n_left` tokens to read, at most `n`, so that no piece has one token.

    Only a prompt that has one token left is read alone. llama.cpp has other kernels for one row,
    which round differently: the text that follows would depend on where the budget happened to cut.
    """
    if n and n_left - n == 1:
        n -= 1
    return 0 if n == 1 < n_left else n
