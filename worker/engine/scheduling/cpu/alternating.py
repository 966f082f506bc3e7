"""Prompts and decoding in batches of their own, by turns, where a batch is large. CPUs only.

From `TILE` rows on llama.cpp's attention on a CPU computes tile by tile, and each tile looks at all
cells that any of its rows may see. Seven decoding rows beside 64 rows of a prompt take 86 ms, where
they take 38 ms in a batch of their own (SmolLM2, 2 cores).
"""

from collections.abc import Sequence

from worker.engine.backend import BatchRow
from worker.engine.scheduling.budget import StepBudget
from worker.engine.scheduling.policy import DefaultPolicy, n_tokens
from worker.engine.slot import Slot, SlotState

TILE = 64
"""Rows that attention computes at once. Source: `GGML_FA_TILE_Q` in llama.cpp's ggml-cpu."""


class AlternatingPolicy:
    """Splits each large step of the default policy in two: its prompts, then its decoding slots."""

    def __init__(self, default: DefaultPolicy) -> None:
        self._default = default
        self._has_read = False
        """The last step read prompts while the decoding slots waited."""

    def plan(self, slots: Sequence[Slot], budget: StepBudget) -> list[BatchRow]:
        """Return the default's rows, or those of one kind if they are many of both."""
        decoding = [slot for slot in slots if slot.state is SlotState.DECODE]
        if decoding and (self._has_read or len(decoding) == len(slots)):
            self._has_read = False
            return self._default.decode(decoding)
        prompts = self._default.read(slots, decoding, budget)
        is_large = len(decoding) + n_tokens(prompts) >= TILE
        self._has_read = bool(decoding and prompts and is_large)
        if self._has_read:
            return prompts
        return self._default.decode(decoding, beside=prompts) + prompts
