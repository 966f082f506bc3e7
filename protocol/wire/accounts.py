"""What each attempt at a task has cost a worker so far, in memory that outlives its process.

The worker counts there while it computes. A gateway on the same host reads it when the worker is
lost, so that what its last step computed is charged, too. The words are signed 64-bit
integers of the machine. The first row has the mark, the epoch, and the sums over all attempts; each
other row has one attempt: connection + 1, task, attempt, and its counts.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from protocol.wire.facts import Usage
from protocol.wire.messages.envelope import TaskKey

N_BYTES = 1 << 15
"""Size of the table: 511 attempts and the sums."""
READ, CACHED, PREDICTED = 3, 4, 5
"""Words of a row: the counts of `Usage`."""
_INDEX = 6
"""Word of a row: its number, which only the worker needs."""
_WIDTH = 8
"""Words of a row."""
_N_ROWS = N_BYTES // (8 * _WIDTH)
_MARK = 0x6C6C_6100_0000_0001
"""`lla` and the version of this form, so that no other memory is read as a table."""


class AccountTable:
    """The rows as their worker writes them; belongs to the engine's thread.

    A closed row is reused as late as possible: the message that ended its attempt may be lost with
    the process.
    """

    def __init__(self, memory: memoryview | None = None, epoch: int = 0) -> None:
        """`memory` is `N_BYTES` of zeros; without it, only this process can read the rows."""
        self._words = (memory or memoryview(bytearray(N_BYTES))).cast("q")
        self._free = deque(range(1, _N_ROWS))
        self.sums = self._words[:_WIDTH]
        """The first row."""
        self._words[1] = epoch
        self._words[0] = _MARK

    def __repr__(self) -> str:
        return f"<AccountTable epoch={self._words[1]} free={len(self._free)}>"

    def open(self, key: TaskKey) -> memoryview:
        """Return a row for an attempt; if all are in use, one that only this process can read.

        Raises `ValueError` for a key that no gateway gives: beyond 64 bits with a sign.
        """
        if not self._free:
            return spare_row()
        index = self._free[0]
        row = self._words[index * _WIDTH : (index + 1) * _WIDTH]
        row[0] = 0  # belongs to no attempt until the rest is written
        row[READ] = row[CACHED] = row[PREDICTED] = 0
        row[1], row[2], row[_INDEX] = key.id, key.attempt, index
        self._free.popleft()
        row[0] = key.connection + 1
        return row

    def close(self, row: memoryview) -> None:
        """Let a row be used again later; call it once."""
        if index := row[_INDEX]:
            self._free.append(index)


def spare_row() -> memoryview:
    """Return a row outside of any table."""
    return memoryview(bytearray(8 * _WIDTH)).cast("q")


def usage_of(row: memoryview) -> Usage:
    """Return the counts of a row."""
    return Usage(n_read=row[READ], n_cached=row[CACHED], n_predicted=row[PREDICTED])


class AttemptCost(NamedTuple):
    """What one attempt has cost."""

    task: int
    attempt: int
    usage: Usage


class AccountReader:
    """A table as a gateway reads it, in the memory of a worker that may be dead."""

    def __init__(self, memory: memoryview) -> None:
        """`memory` is read at each call."""
        self._memory = memory

    def is_of(self, epoch: int) -> bool:
        """Whether it is the table of this run of a worker, in a form that is known here."""
        words = self._words()
        return len(self._memory) == N_BYTES and words[0] == _MARK and words[1] == epoch

    def sums(self) -> Usage:
        """Return the sums over all attempts."""
        return usage_of(self._words()[:_WIDTH])

    def of(self, connection: int) -> Iterator[AttemptCost]:
        """Go through the attempts of the worker's connection of this number."""
        words = self._words()
        for start in range(_WIDTH, len(words), _WIDTH):
            if words[start] == connection + 1:
                row = words[start : start + _WIDTH]
                yield AttemptCost(row[1], row[2], usage_of(row))

    def _words(self) -> memoryview:
        return self._memory.cast("B").cast("q")
