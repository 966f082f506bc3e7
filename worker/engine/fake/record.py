"""Counts of what a fake engine has computed, in a file that survives when its process is killed.

`LLAMAPOOL_FAKE_RECORD` names a folder; each process keeps two counts in a mapped file there. They
do not depend on the engine's own counters, so that tests can check those against them.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

RECORD_VARIABLE = "LLAMAPOOL_FAKE_RECORD"
_FORM = struct.Struct("<QQ")


class Computed(NamedTuple):
    """Tokens that were computed."""

    n_read: int
    """Of prompts."""
    n_sampled: int
    """That were chosen, for any task."""


class ComputeRecord:
    """The counts of one process; without the variable they are kept nowhere."""

    def __init__(self) -> None:
        self._map: mmap.mmap | bytearray = bytearray(_FORM.size)
        if folder := os.environ.get(RECORD_VARIABLE, ""):
            Path(folder).mkdir(exist_ok=True)
            path = Path(folder) / str(os.getpid())
            path.write_bytes(bytes(_FORM.size))
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), _FORM.size)

    def add(self, n_read: int, n_sampled: int) -> None:
        """Count tokens."""
        before = Computed(*_FORM.unpack_from(self._map))
        _FORM.pack_into(self._map, 0, before.n_read + n_read, before.n_sampled + n_sampled)


def read_records(folder: Path) -> dict[int, Computed]:
    """Return the counts of all processes that ever kept some, by their ids."""
    return {int(path.name): Computed(*_FORM.unpack(path.read_bytes())) for path in folder.iterdir()}
