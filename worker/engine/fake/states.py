"""The fake backend's adapters and states: as strict as llama.cpp's, over plain lists."""

import struct
from collections.abc import Mapping, Sequence

from worker.engine.adapters import Adapter, Scales
from worker.engine.sequence_state import State


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

    def __init__(self, cells: dict[int, list[int]], model: str, projector: str = "") -> None:
        self.facts: Mapping[str, str] = {"model": model}
        self.projector = projector
        self._cells = cells

    def copy(self, seq: int) -> State:
        """Return the tokens of a sequence."""
        cells = self._cells.get(seq, [])
        return struct.pack(f"<I{len(cells)}i", len(cells), *cells)

    def put(self, seq: int, state: State, n_tokens: int) -> bool:
        """Replace a sequence, if the state is one."""
        cells = self._cells.setdefault(seq, [])
        cells.clear()
        if len(state) != 4 + 4 * n_tokens or struct.unpack_from("<I", state)[0] != n_tokens:
            return False
        cells += map(Cell, struct.unpack_from(f"<{n_tokens}i", state, 4))
        return True
