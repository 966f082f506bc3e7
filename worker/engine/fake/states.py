"""The fake backend's adapters and states: as strict as llama.cpp's, over plain lists."""

import struct
from collections.abc import Callable, Mapping, Sequence

from worker.engine.adapters import Adapter, Scales
from worker.engine.media import count_positions, count_shared
from worker.engine.sequence_state import Checkpoint, State


def index_of(tokens: Sequence[int], pos: int) -> int:
    """Return how many tokens have positions before `pos`, or share the last of them."""
    n = min(pos, len(tokens))
    while count_positions(tokens[:n]) < pos and n < len(tokens):
        n += 1
    while n < len(tokens) and count_shared(tokens[n : n + 1]):
        n += 1
    return n


class Cell(int):
    """A token in its place: sequences that share a cell hold the same object."""


class FakeAdapters:
    """Remembers what is applied; the fake's text depends on it."""

    def __init__(self, files: Sequence[str], *, scale: float) -> None:
        self.loaded: Sequence[Adapter] = [Adapter(path, scale) for path in files]
        self.used: Scales = ()

    def use(self, scales: Scales) -> None:
        """Apply these scales from now on."""
        assert len(scales) == len(self.loaded)
        self.used = scales

    @property
    def flavour(self) -> bytes:
        """What the adapters add to a text: nothing where all are off."""
        return repr(self.used).encode() if any(self.used) else b""


class FakeStates:
    """Writes a sequence as its tokens."""

    version = 3
    n_streams = 0
    can_cut = True
    needs_checkpoints = False
    window = 0
    """How many of the last positions can be cut where checkpoints are needed."""

    def __init__(
        self,
        cells: dict[int, list[int]],
        n_free: Callable[[], int],
        note: Callable[[int], object],
        model: str,
        projector: str = "",
    ) -> None:
        """`n_free` counts the cells that nothing uses; `note` is told which sequence has grown."""
        self.facts: Mapping[str, str] = {"model": model}
        self.projector = projector
        self._cells = cells
        self._n_free = n_free
        self._note = note
        self.ends: dict[int, int] = {}
        """Where each sequence ends, by what of it cannot be cut."""
        self.first_cuts: dict[int, int] = {}
        """First position at which each can be cut; it grows with the sequence."""

    def copy(self, seq: int) -> State:
        """Return the tokens of a sequence."""
        cells = self._cells.get(seq, [])
        return struct.pack(f"<I{len(cells)}i", len(cells), *cells)

    def copy_part(self, seq: int, start: int, end: int) -> State:
        """Return some tokens of a sequence, and the position of the first."""
        cells = self._cells[seq]
        part = cells[index_of(cells, start) : index_of(cells, end)]
        assert count_positions(part) == end - start
        return struct.pack(f"<I{len(part)}i", start, *part)

    def put(self, seq: int, state: State, n_pos: int) -> bool:
        """Replace a sequence, if the state is one."""
        cells = self._cells.setdefault(seq, [])
        cells.clear()
        n_tokens = len(state) // 4 - 1
        self.ends[seq] = self.first_cuts[seq] = n_tokens
        if len(state) % 4 or n_tokens < 0 or struct.unpack_from("<I", state)[0] != n_tokens:
            return False
        tokens = struct.unpack_from(f"<{n_tokens}i", state, 4)
        if count_positions(tokens) != n_pos:
            return False
        cells += map(Cell, tokens)
        return True

    def put_part(self, seq: int, state: State, start: int, end: int) -> bool:
        """Append tokens of a part, if there are cells for all of it."""
        cells = self._cells.setdefault(seq, [])
        (first,) = struct.unpack_from("<I", state)
        tokens = struct.unpack_from(f"<{len(state) // 4 - 1}i", state, 4)
        n_pos = count_positions(tokens)
        assert first <= start == count_positions(cells) <= end <= first + n_pos
        if self._n_free() < len(tokens):
            return False
        part = tokens[index_of(tokens, start - first) : index_of(tokens, end - first)]
        cells += map(Cell, part)
        self._note(seq)
        return True

    def checkpoint(self, seq: int) -> State:
        """Return all tokens, so that `go_back` can see whether they are the right ones."""
        assert self.ends.get(seq, 0) == len(self._cells[seq])
        return self.copy(seq)

    def first_cut(self, seq: int) -> int:
        """Return the end, or with a window the first position whose window was never left."""
        end = count_positions(self._cells.get(seq, [])[: self.ends.get(seq, 0)])
        first = max(0, end - self.window, self.first_cuts.get(seq, 0))
        self.first_cuts[seq] = first
        return first

    def go_back(self, seq: int, checkpoint: Checkpoint) -> bool:
        """Cut a sequence that begins with the tokens of the checkpoint."""
        cells, n = self._cells[seq], checkpoint.n
        assert struct.pack(f"<I{n}i", n, *cells[:n]) == bytes(checkpoint.state)
        del cells[n:]
        self.ends[seq], self.first_cuts[seq] = n, checkpoint.n_pos
        self._note(seq)
        return True
