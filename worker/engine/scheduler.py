"""What goes into the next batch. Pure: slots and a budget in, a plan out.

Every decoding slot gets its one token first. What a step may take longer than that is spent on
prompts, up to a budget that follows the measured speed, so that a long prompt never freezes the
streams of others (llama-server reads up to `n_batch` tokens in one step, however long that takes).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Waiting(NamedTuple):
    """A slot whose prompt is not read to its end."""

    slot: int
    n_left: int
    order: int
    """Admission number; the least has waited longest."""


class Chunk(NamedTuple):
    """The next `n` prompt tokens of a slot."""

    slot: int
    n: int


MIN_CHUNK = 16
"""Fewer rows use the device so badly that waiting would be no slower."""


def plan_chunks(waiting: Sequence[Waiting], budget: int) -> list[Chunk]:
    """Share the budget among prompts.

    The oldest gets at least half, so that it always comes to its end; the rest goes to the
    shortest first, which gives a short question its answer while a long text is read.
    """
    if not waiting or budget <= 0:
        return []
    by_order = sorted(waiting, key=lambda one: one.order)
    oldest = by_order[0]
    share = min(oldest.n_left, budget if len(waiting) == 1 else max(1, budget // 2))
    chunks = {oldest.slot: share}
    left = budget - share
    for one in sorted(waiting, key=lambda one: (one.n_left, one.order)):
        n = min(one.n_left - chunks.get(one.slot, 0), left)
        chunks[one.slot] = chunks.get(one.slot, 0) + n
        left -= n
    rounded = [Chunk(one.slot, _without_single(chunks[one.slot], one.n_left)) for one in by_order]
    return [chunk for chunk in rounded if chunk.n] or [Chunk(oldest.slot, 1)]


def _without_single(n: int, n_left: int) -> int:
    """Cut a prompt so that no single token is read alone, unless it is the only one.

    llama.cpp has other kernels for one row, which round differently: the text that follows would
    depend on where the budget happened to cut.
    """
    if n_left - n == 1:
        n -= 1
    return 0 if n == 1 < n_left else n


@dataclass(slots=True)
class Budget:
    """How many prompt tokens the next step may read, learnt from the steps before.

    `token_s` is the measured cost of a prompt token, `decode_s` that of a step without prompts;
    both are moving averages. With nobody decoding a step may take `idle_target_s`, which bounds
    how long a cancel or a new task waits.
    """

    target_s: float
    n_batch: int
    token_s: float = 0.0
    decode_s: float = 0.0
    idle_target_s: float = 0.25

    def tokens(self, n_decoding: int) -> int:
        """Return the prompt tokens that fit beside `n_decoding` rows."""
        room = self.n_batch - n_decoding
        if self.token_s <= 0.0:
            return min(room, 4 * MIN_CHUNK)
        spare_s = self.idle_target_s
        if n_decoding:
            spare_s = max(0.0, self.target_s - self.decode_s)
        return max(1, min(room, max(MIN_CHUNK, int(min(room, spare_s / self.token_s)))))

    def observe(self, n_decoding: int, n_prompt: int, elapsed_s: float) -> None:
        """Learn from a step that took `elapsed_s`."""
        if n_prompt == 0:
            self.decode_s = _blend(self.decode_s, elapsed_s)
            return
        spent_s = elapsed_s - (self.decode_s if n_decoding else 0.0)
        if n_prompt >= MIN_CHUNK // 2 and spent_s > 0.0:
            self.token_s = _blend(self.token_s, spent_s / n_prompt)


def _blend(average: float, value: float, weight: float = 0.3) -> float:
    return value if average <= 0.0 else average + weight * (value - average)
