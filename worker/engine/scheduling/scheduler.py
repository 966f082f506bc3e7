"""What goes into the next batch. Pure: slots and a budget in, a plan out.

Every decoding slot gets its one token first. What a step may take longer than that is spent on
prompts, up to a budget that follows the measured speed, so that a long prompt never freezes the
streams of others (llama-server reads up to `n_batch` tokens in one step, however long that takes).
Among prompts the one with the least left comes first, which brings the most people their first
token soonest; who has waited long gets half of every step, so that nobody waits for ever. Where
several wait, one whole prompt after the other is read: each step of those that decode in between
keeps all of them waiting.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from worker.engine.scheduling.cost import DecodeCost


class Waiting(NamedTuple):
    """A slot whose prompt is not read to its end."""

    slot: int
    n_left: int
    order: int
    """Admission number; the least has waited longest."""
    is_late: bool = False
    """It has waited so long that shorter ones may not pass it any more."""


class PromptChunk(NamedTuple):
    """The next `n` prompt tokens of a slot."""

    slot: int
    n: int


MIN_CHUNK = 16
"""Fewer rows use the device so badly that waiting would be no slower."""
TILE = 64
"""The attention of CPUs computes so many rows at once; smaller chunks are read 1.1 to 1.6 times
slower (measured, docs/running/performance.md)."""
NEARLY = 40
"""Behind 1,000 tokens 40 rows take as long as a whole tile: between the two nothing is won."""
ENOUGH = TILE // 2
"""From so many rows on another prompt in the same batch makes neither of them faster."""
STRETCH = 2.3
"""So much longer than its target a step may take to fill a tile."""
BURST = 5
"""So many targets a step may take at most for the sake of those who wait behind a prompt."""
NEARLY_ALL = 1.25
"""A prompt that has so little more left than fits is read to its end: no rest waits for a step."""
WHOLE = 1.5
"""The same where others wait behind it: a second turn of decoding slots keeps them all waiting, and
two small pieces are read 5 % slower than one."""
LEARN_ALL, LEARN_EVERY = 200, 4
"""So many steps without prompts are learnt from at first, then each fourth: the fit takes 30 us."""
PATIENCE_S = 2.0
"""How long a prompt waits for shorter ones, beside the time that reading it takes."""


def plan_chunks(
    waiting: Sequence[Waiting],
    budget: int,
    room: int,
    *,
    n_read: int | None = None,
    nearly: float = NEARLY_ALL,
) -> list[PromptChunk]:
    """Share the budget among prompts: the shortest rest first, half for the oldest late one.

    A chunk may be larger than its share, if there is `room` for it (`nearly` times as large, if
    that is all of its prompt), or smaller, so that what is left of its prompt is whole tiles.

    Where prompts take turns with decoding slots, `n_read` tokens of the budget are used up since
    those had their turn. Then others join the shortest only if it is tiny, for they would keep its
    token back, and only if they are read to their ends, for a piece brings nobody a token. Once
    something is read, what is left of the budget goes to another piece if that is a tile at least,
    for turns that are full are fewer; less goes to whole prompts only. If nothing is returned, it
    is the decoding slots' turn.
    """
    if n_read:
        budget, room = budget - n_read, room - n_read
        if budget < TILE:
            waiting = [one for one in waiting if one.n_left <= min(room, budget * nearly)]
    if not waiting or budget <= 0:
        return []
    chunks = _shares(waiting, budget, room, is_turn=n_read is not None, nearly=nearly)
    room -= sum(chunks.values())
    rounded = []
    for one in sorted(waiting, key=_order):
        if one.slot not in chunks:
            continue
        n = _leaving_tiles(chunks[one.slot], one.n_left, room)
        room -= n - chunks[one.slot]
        rounded.append(PromptChunk(one.slot, _without_single(n, one.n_left)))
    return [chunk for chunk in rounded if chunk.n] or [
        PromptChunk(min(waiting, key=_length).slot, 1)
    ]


def _shares(
    waiting: Sequence[Waiting], budget: int, room: int, *, is_turn: bool, nearly: float
) -> dict[int, int]:
    """Share the budget among slots as if tokens could be read in any number."""
    chunks: dict[int, int] = {}
    late = min((one for one in waiting if one.is_late), key=_order, default=None)
    if late is not None:
        chunks[late.slot] = min(late.n_left, budget if len(waiting) == 1 else max(1, budget // 2))
    left = budget - sum(chunks.values())
    for i, one in enumerate(sorted(waiting, key=_length)):
        has = chunks.get(one.slot, 0)
        may_be_cut = not is_turn or has > 0 or i == 0
        if not may_be_cut and sum(chunks.values()) >= ENOUGH:
            break
        rest, n = one.n_left - has, left if may_be_cut else 0
        if rest <= max(left, min(room - budget + left, left * nearly)):
            n = rest
        chunks[one.slot] = has + n
        left = max(0, left - n)
    return chunks


def _order(one: Waiting) -> int:
    return one.order


def _length(one: Waiting) -> tuple[int, int]:
    return one.n_left, one.order


def _leaving_tiles(n: int, n_left: int, room: int) -> int:
    """Read what is no whole tile of a prompt at its beginning, where that costs least.

    A few rows are read one by one, against every cell before them: behind 1,000 tokens 32 rows take
    190 ms, where a whole tile takes 250.
    """
    n_odd = (n_left - n) % TILE
    if n < TILE or n_odd <= 1:
        return n
    return n + n_odd if n_odd <= room else n + n_odd - TILE


def _without_single(n: int, n_left: int) -> int:
    """Cut a prompt so that no single token is read alone, unless it is the only one.

    llama.cpp has other kernels for one row, which round differently: the text that follows would
    depend on where the budget happened to cut.
    """
    if n and n_left - n == 1:
        n -= 1
    return 0 if n == 1 < n_left else n


@dataclass(slots=True)
class StepBudget:
    """How many prompt tokens the next step may read, learnt from the steps before.

    `token_s` is the measured cost of a prompt token, a moving average. With nobody decoding a step
    may take `idle_target_s`, which bounds how long a cancel or a new task waits.
    """

    target_s: float
    n_batch: int
    token_s: float = 0.0
    idle_target_s: float = 0.5
    decode: DecodeCost = field(default_factory=DecodeCost)
    cell_share: float = 0.0
    """What a cell is assumed to cost each row until that is learnt, in prompt tokens."""
    takes_turns: bool = False
    """Prompts and decoding slots have steps of their own: see `plan.py`."""
    n_pure: int = 0
    """Steps without prompts so far."""

    def tokens(
        self, n_decoding: int, n_cells: int = 0, n_waiting: int = 0, is_overdue: bool = False
    ) -> int:
        """Return the prompt tokens that fit beside `n_decoding` rows, while so many tasks read.

        With `is_overdue` one of them has waited longer than is fair before it could begin.
        """
        room = self.n_batch - n_decoding
        if self.token_s <= 0.0:
            return min(room, 4 * MIN_CHUNK)
        n_targets = self._n_targets(n_decoding, n_waiting, is_overdue)
        spare_s = self._spare_s(n_decoding, n_cells, n_targets)
        n = max(MIN_CHUNK, round(min(room, spare_s / self.token_s)))
        if NEARLY < n < TILE:
            n = TILE
        elif n_decoding and n_waiting <= 1 and n > TILE and n % TILE < TILE // 2:
            n -= n % TILE  # a tile of few rows takes as long as a full one
        return max(1, min(room, n))

    def room(self, n: int, n_decoding: int, n_cells: int = 0, nearly: float = NEARLY_ALL) -> int:
        """Return how many prompt tokens a step meant for `n` may be stretched to."""
        if not n_decoding or self.token_s <= 0.0:
            return self.n_batch
        spare_s = STRETCH * self.target_s - self.decode.predict(n_decoding, n_cells)
        most = max(n * nearly, spare_s / self.token_s)
        return min(round(most), self.n_batch - n_decoding)

    def _spare_s(self, n_decoding: int, n_cells: int, n_targets: float) -> float:
        """Return the time for prompts: what is left of the targets, or more for a whole tile."""
        if not n_decoding:
            return self.idle_target_s
        decode_s = self.decode.predict(n_decoding, n_cells)
        tile_s = min(TILE * self.token_s, STRETCH * self.target_s - decode_s)
        burst_s = self.target_s * n_targets - decode_s
        return max(0.0, burst_s, tile_s)

    def _n_targets(self, n_decoding: int, n_waiting: int, is_overdue: bool) -> float:
        """Return how many targets a step may take, by who waits for first and for next tokens."""
        if self.takes_turns and is_overdue:
            return BURST
        if n_waiting <= 1:
            return 1.0
        share = n_waiting / (n_waiting + n_decoding)
        if not self.takes_turns:  # next tokens come with every step
            return max(1.0, BURST * share) if n_waiting > n_decoding else 1.0
        return max(1.0, min(n_waiting + 1, 3 * BURST * share, BURST))

    def observe(self, n_decoding: int, n_prompt: int, elapsed_s: float, n_cells: int = 0) -> None:
        """Learn from a step that took `elapsed_s`."""
        if n_prompt == 0:
            self.n_pure += 1
            self.decode.note(n_decoding, elapsed_s)
            if self.n_pure <= LEARN_ALL or self.n_pure % LEARN_EVERY == 0:
                self.decode.observe(n_decoding, n_cells, elapsed_s)
            return
        spent_s = elapsed_s - (self.decode.predict(n_decoding, n_cells) if n_decoding else 0.0)
        if n_prompt >= MIN_CHUNK // 2 and spent_s > 0.0:
            self.token_s = _blend(self.token_s, spent_s / n_prompt)

    @property
    def cell_s(self) -> float:
        """What a cell in use costs each row; 0 if that is nothing."""
        return self.decode.price_s(self.cell_share * self.token_s)

    def is_late(self, n_left: int, waited_s: float) -> bool:
        """Tell whether a prompt has waited longer than is fair."""
        return waited_s > PATIENCE_S + 2 * n_left * self.token_s


def _blend(average: float, value: float, weight: float = 0.3) -> float:
    return value if average <= 0.0 else average + weight * (value - average)
