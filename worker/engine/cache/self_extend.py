"""Self-extend: contexts longer than a model was trained for, by sharing positions. Pure.

The newest tokens have positions of their own; older ones share one position in groups of `n`, for
each full window of `width` tokens (Jin et al., 2024; llama.cpp's server until October 2024). A
grouped cache can neither be shifted nor cut, so a slot reads each prompt from its first token.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from worker.engine.backend import Regroup
from worker.engine.slot import Slot


@dataclass(frozen=True, slots=True)
class SelfExtend:
    """How positions are shared; `width` is a multiple of `n`."""

    n: int
    width: int

    def regroup(self, slot: Slot) -> Iterator[Regroup]:
        """Yield the moves to make before a slot continues, and update the slot's counts."""
        while slot.n_pos >= slot.group_start + self.width:
            move = self._move(slot.group_start, slot.n_pos)
            yield move
            slot.n_saved += move.n_saved
            slot.group_start += self.width // self.n

    def room(self, slot: Slot) -> int:
        """Count the tokens until the next window is full.

        Prompts are cut there, so that the text does not depend on how fast a prompt is read.
        """
        return slot.group_start + self.width - slot.n_pos

    def _move(self, start: int, end: int) -> Regroup:
        n_new = self.width // self.n
        up = self.n * start // self.width * n_new * (self.n - 1)
        return Regroup(start, end, up, self.width, self.n, n_new - up - self.width)
