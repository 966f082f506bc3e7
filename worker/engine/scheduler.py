"""What goes into the next batch. Pure: slots and a budget in, a plan out.

Every decoding slot gets its one token first. What a step may take longer than that is spent on
prompts, up to a budget that follows the measured speed, so that a long prompt never freezes the
streams of others (llama-server reads up to `n_batch` tokens in one step, however long that takes).
Among prompts the one with the least left comes first, which brings the most people their first
token soonest; who has waited long gets half of every step, so that nobody waits for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from worker.engine.cost import DecodeCost


class Waiting(NamedTuple):
    """A slot whose prompt is not read to its end."""

    slot: int
    n_left: int
    order: int
    """Admission number; the least has waited longest."""
    is_late: bool = False
    """It has waited so long that shorter ones may not pass it any more."""


class Chunk(NamedTuple):
    """The next `n` prompt tokens of a slot."""

    slot: int
    n: int


MIN_CHUNK = 16
"""Fewer rows use the device so badly that waiting would be no slower."""
TILE = 64
"""The attention of CPUs computes so many rows at once; smaller chunks are read 1.1 to 1.6 times
slower (measured, docs/performance.md)."""
NEARLY = 40
"""Behind 1,000 tokens 40 rows take as long as a whole tile: between the two nothing is won."""
STRETCH = 2.3
"""So much longer than its target a step may take to fill a tile."""
LEARN_ALL, LEARN_EVERY = 200, 4
"""So many steps without prompts are learnt from at first, then each fourth: the fit takes 30 us."""
PATIENCE_S = 2.0
"""How long a prompt waits for shorter ones, beside the time that reading it takes."""


def plan_chunks(waiting: Sequence[Waiting], budget: int, room: int) -> list[Chunk]:
    """Share the budget among prompts: the shortest rest first, half for the oldest late one.

    A chunk may be half a tile larger than its share, if there is `room` for it, or smaller, so that
    what is left of its prompt is whole tiles.
    """
    if not waiting or budget <= 0:
        return []
    chunks: dict[int, int] = {}
    late = min((one for one in waiting if one.is_late), key=_order, default=None)
    if late is not None:
        chunks[late.slot] = min(late.n_left, budget if len(waiting) == 1 else max(1, budget // 2))
    left = budget - sum(chunks.values())
    shortest_first = sorted(waiting, key=lambda one: (one.n_left, one.order))
    for one in shortest_first:
        n = min(one.n_left - chunks.get(one.slot, 0), left)
        chunks[one.slot] = chunks.get(one.slot, 0) + n
        left -= n
    room -= budget - left
    rounded = []
    for one in sorted(waiting, key=_order):
        n = _leaving_tiles(chunks[one.slot], one.n_left, room)
        room -= n - chunks[one.slot]
        rounded.append(Chunk(one.slot, _without_single(n, one.n_left)))
    return [chunk for chunk in rounded if chunk.n] or [Chunk(shortest_first[0].slot, 1)]


def _order(one: Waiting) -> int:
    return one.order


def _leaving_tiles(n: int, n_left: int, room: int) -> int:
    """Read what is no whole tile of a prompt at its beginning, where that costs least.

    A few rows are read one by one, against every cell before them: behind 1,000 tokens 32 rows take
    190 ms, where a whole tile takes 250.
    """
    n_odd = (n_left - n) % TILE
    if n < TILE or n_odd <= 1:
        return n
    return n + n_odd if n_odd < min(TILE // 2, room + 1) else n + n_odd - TILE


def _without_single(n: int, n_left: int) -> int:
    """Cut a prompt so that no single token is read alone, unless it is the only one.

    llama.cpp has other kernels for one row, which round differently: the text that follows would
    depend on where the budget happened to cut.
    """
    if n and n_left - n == 1:
        n -= 1
    return 0 if n == 1 < n_left else n


@dataclass(slots=True)
class Budget:
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
    n_pure: int = 0
    """Steps without prompts so far."""

    def tokens(self, n_decoding: int, n_cells: int = 0, n_waiting: int = 0) -> int:
        """Return the prompt tokens that fit beside `n_decoding` rows, while so many tasks read."""
        room = self.n_batch - n_decoding
        if self.token_s <= 0.0:
            return min(room, 4 * MIN_CHUNK)
        spare_s = self._spare_s(n_decoding, n_cells, n_waiting)
        n = max(MIN_CHUNK, round(min(room, spare_s / self.token_s)))
        if NEARLY < n < TILE:
            n = TILE
        elif n_decoding and n > TILE and n % TILE < TILE // 2:
            n -= n % TILE  # a tile of few rows takes as long as a full one
        return max(1, min(room, n))

    def _spare_s(self, n_decoding: int, n_cells: int, n_waiting: int) -> float:
        """Return the time for prompts: what is left of the target, or more where that pays."""
        if not n_decoding:
            return self.idle_target_s
        decode_s = self.decode.predict(n_decoding, n_cells)
        tile_s = min(TILE * self.token_s, STRETCH * self.target_s - decode_s)
        burst_s = 0.0
        if n_waiting > n_decoding:  # more people wait for their first token than for their next
            burst_s = self.idle_target_s * n_waiting / (n_waiting + n_decoding) - decode_s
        return max(0.0, self.target_s - decode_s, tile_s, burst_s)

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
