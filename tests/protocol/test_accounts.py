"""What attempts have cost, in memory that outlives the process that counts there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.process.shared_memory import make_shared, open_shared
from protocol.wire.accounts import CACHED, N_BYTES, PREDICTED, READ, AccountReader, AccountTable
from protocol.wire.facts import Usage
from protocol.wire.messages import TaskKey


def test_a_row_tells_what_its_attempt_has_cost() -> None:
    memory = memoryview(bytearray(N_BYTES))
    table, reader = AccountTable(memory, epoch=7), AccountReader(memory)
    row, other = table.open(TaskKey(5, 1, 0)), table.open(TaskKey(5, 0, 3))
    row[READ], row[CACHED], row[PREDICTED] = 10, 2, 1
    other[READ] = 4
    assert list(reader.of(0)) == [(5, 1, Usage(n_read=10, n_cached=2, n_predicted=1))]
    assert list(reader.of(3)) == [(5, 0, Usage(n_read=4))]
    assert not list(reader.of(1))
    assert reader.is_of(7) and not reader.is_of(8)


def test_a_closed_row_is_told_until_all_others_were_used() -> None:
    memory = memoryview(bytearray(N_BYTES))
    table, reader = AccountTable(memory), AccountReader(memory)
    first = table.open(TaskKey(1))
    first[READ] = 3
    table.close(first)
    n = 0
    while (1, 0, Usage(n_read=3)) in list(reader.of(0)):
        n += 1
        table.close(table.open(TaskKey(1 + n)))
    assert n > 256  # slots of a worker


def test_a_key_that_fits_into_no_row_takes_none() -> None:
    table = AccountTable()
    shown = repr(table)
    for key in (TaskKey(2**64 - 1), TaskKey(1, 2**63)):
        with pytest.raises(ValueError, match="format"):
            table.open(key)
    assert repr(table) == shown


def test_what_finds_no_row_is_counted_for_itself() -> None:
    table = AccountTable()
    rows = [table.open(TaskKey(number)) for number in range(2000)]
    rows[-1][READ] = 1
    rows[-2][READ] = 2
    assert (rows[-1][READ], rows[-2][READ], rows[0][READ]) == (1, 2, 0)
    for row in rows:
        table.close(row)
    again = [table.open(TaskKey(number)) for number in range(100)]
    assert len({id(row) for row in again}) == 100


_CHILD = f"""
import sys, time
from protocol.process.shared_memory import make_shared
from protocol.wire.accounts import AccountTable, PREDICTED
from protocol.wire.messages import TaskKey
fd, memory = make_shared({N_BYTES})
row = AccountTable(memory, 9).open(TaskKey(4))
row[PREDICTED] = 1
print(fd, flush=True)
sys.stdin.readline()
row[PREDICTED] = 2
print(flush=True)
sys.stdin.readline()
"""


def test_memory_outlives_the_process_that_made_it() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None and child.stdout is not None
    with child:
        memory = open_shared(child.pid, int(child.stdout.readline()), N_BYTES)
        assert memory is not None and memory.readonly
        reader = AccountReader(memory)
        assert reader.is_of(9)
        assert [one.usage.n_predicted for one in reader.of(0)] == [1]
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        child.kill()
    assert [one.usage.n_predicted for one in reader.of(0)] == [2]


def test_only_sealed_memory_of_that_size_is_opened(tmp_path: Path) -> None:
    fd, _ = make_shared(N_BYTES)
    unsealed = os.memfd_create("llamapool-accounts")
    os.ftruncate(unsealed, N_BYTES)
    (tmp_path / "file").write_bytes(bytes(N_BYTES))
    file = os.open(tmp_path / "file", os.O_RDONLY)
    reader, writer = os.pipe()
    try:
        assert open_shared(os.getpid(), fd, N_BYTES) is not None
        for wrong in (unsealed, file, reader, writer, 1 << 30, -1):
            assert open_shared(os.getpid(), wrong, N_BYTES) is None
        assert open_shared(os.getpid(), fd, N_BYTES // 2) is None
        assert open_shared(0, fd, N_BYTES) is None
    finally:
        for one in (fd, unsealed, file, reader, writer):
            os.close(one)
