"""How streams go on while a long prompt is read beside them: tokens ahead, let out evenly. Pure.

Where prompts and decoding slots take turns, a stream's next token waits for a piece of the prompt,
and small pieces are read slowly. So several steps of the streams come in a row, then a larger
piece, and what the steps said leaves evenly over the time that all of them take. Who reads along
sees tokens that come steadily, not the piece. Clients pace tokens like this for people to read
(Andes, Liu et al. 2024, arXiv:2404.16283); the server knows how long the next piece takes.
"""

import math
from typing import NamedTuple

from worker.engine.scheduling.scheduler import TILE, StepBudget

PIECE = 2 * TILE
"""Prompt tokens that are read between two turns of streams: a CPU's attention takes a quarter less
for each than in single tiles."""
SPREAD = 1.5
"""So many step targets two tokens of a stream may be apart."""
MOST = 3.0
"""A piece takes at least so many times as long as the steps before it: the prompt comes first."""
LONGEST = 8.0
"""So many step targets a piece may take at most, unless it is a single tile."""
GROWS = 1.15
"""A piece takes so much longer than the average of the last ones says, for more lies before it."""


class PacingPlan(NamedTuple):
    """Steps of decoding slots in a row, and the piece of a prompt that comes after them."""

    n_steps: int = 1
    n_tokens: int = 0
    """Of the prompt; 0 leaves it to the budget."""
    interval_s: float = 0.0
    """Time between what one step says and what the next one does; 0 is at once."""


def plan_turn(budget: StepBudget, n_left: int, n_decoding: int, n_cells: int) -> PacingPlan:
    """Plan a turn of so many decoding slots, while one prompt has `n_left` tokens to be read."""
    decode_s = budget.decode.predict(n_decoding, n_cells)
    n_tokens = min(n_left, PIECE)
    if n_tokens > TILE and n_tokens * budget.token_s > LONGEST * budget.target_s:
        n_tokens = TILE
    piece_s = n_tokens * budget.token_s * GROWS
    if decode_s <= 0.0 or piece_s <= 0.0:
        return PacingPlan()
    spare_s = max(decode_s, SPREAD * budget.target_s - decode_s)
    n_steps = min(math.ceil(piece_s / spare_s), int(piece_s / (MOST * decode_s)))
    if n_steps < 2:
        return PacingPlan()
    return PacingPlan(n_steps, n_tokens, piece_s / n_steps + decode_s)


class StreamPacer:
    """Goes through turns: which of its steps is next, and when what that one says leaves."""

    def __init__(self) -> None:
        self._turn = PacingPlan()
        self._n_steps = 1
        """Steps of the turn that were planned."""
        self._start_s = 0.0

    def begin(self, turn: PacingPlan) -> None:
        """Begin a turn; its first step is planned, and says what it says at once."""
        self._turn, self._n_steps = turn, 1

    def end(self) -> None:
        """Leave a turn; what is held leaves with the next step."""
        self._turn = PacingPlan()

    @property
    def goes_on(self) -> bool:
        """The decoding slots have another step."""
        return self._n_steps < self._turn.n_steps

    def go_on(self, now_s: float) -> float:
        """Plan the next step; return when what it says may leave."""
        if self._n_steps == 1:
            self._start_s = now_s  # what the first one said leaves
        due_s = self._start_s + self._n_steps * self._turn.interval_s
        self._n_steps += 1
        return due_s

    @property
    def n_tokens(self) -> int:
        """Prompt tokens that may be read after the turn; 0 leaves it to the budget."""
        return self._turn.n_tokens
