"""The seam for copies of a sequence's memory: what a slot is saved from and restored to."""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

State = bytes | bytearray | memoryview


class Checkpoint(NamedTuple):
    """A place to which a sequence can go back whose memory cannot be cut anywhere."""

    n: int
    """Tokens before it."""
    n_pos: int
    """Positions that they take."""
    state: State
    """What cannot be cut: the states of recurrent layers, the cells of sliding windows."""


class HostCacheHit(NamedTuple):
    """A copy in the host's memory whose first `n` tokens are those of a prompt."""

    n: int
    pieces: Sequence[State]
    n_pos: int = 0
    """Positions of a copy that is one piece, all of it."""
    checkpoints: Sequence[Checkpoint] = ()
    """Those of such a copy; one is at `n` if that is not its end."""


NUMBER = struct.Struct("<I")
"""A number of streams or cells in a state."""


def spread(state: State, n_streams: int, stream: int) -> list[State]:
    """Write the state of a unified cache as that of one with several streams, all others empty.

    A state begins with the number of streams, and has for each the number of its cells before them.
    """
    if n_streams <= 1:
        return [state]
    before = NUMBER.pack(n_streams) + bytes(NUMBER.size * stream)
    after = bytes(NUMBER.size * (n_streams - 1 - stream))
    return [before, memoryview(state)[NUMBER.size :], after]


class SequenceState(Protocol):
    """Reads and writes the memory of sequences; used between two steps."""

    version: int
    """Number of the format that the library writes now and could read."""
    facts: Mapping[str, str]
    """What must be the same for a state to be of use, by name."""
    projector: str
    """What images and sounds were read with, which matters for them alone; empty without one."""
    n_streams: int
    """Streams of the cache, as llama-server's with the same options; 0 if not all of a state is
    such a cache's. States are those of a unified one all the same."""

    can_cut: bool
    """Whether a part of a sequence can be copied; otherwise only the whole."""
    needs_checkpoints: bool
    """Whether a sequence can be cut only from `first_cut` on, and at checkpoints."""

    def copy(self, seq: int) -> State:
        """Return the memory of a sequence as the library writes it into a file."""

    def copy_part(self, seq: int, start: int, end: int) -> State:
        """Return the memory of the positions `start` to `end`, which may be none.

        Only if `can_cut`.
        """

    def put_part(self, seq: int, state: State, start: int, end: int) -> bool:
        """Append positions `start` to `end` of a copied part; False if there is no room."""

    def put(self, seq: int, state: State, n_pos: int) -> bool:
        """Replace a sequence by `n_pos` positions.

        False if the state does not fit, and the sequence is empty then.
        """

    def checkpoint(self, seq: int) -> State:
        """Return what of a sequence cannot be cut, as of its last token."""

    def first_cut(self, seq: int) -> int:
        """Return the first position from which on a sequence can be cut without a checkpoint.

        Its end, or with sliding windows the first whose whole window is still there. Only if
        `needs_checkpoints`.
        """

    def go_back(self, seq: int, checkpoint: Checkpoint) -> bool:
        """Cut a sequence at a checkpoint of its own or of one that shares its cells until there.

        False if that is not possible; the sequence must be emptied then.
        """
