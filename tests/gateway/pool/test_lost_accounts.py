"""What a killed worker has computed and told nobody: its memory tells."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.pool.tasks.stream import TaskStream
from protocol.process.shared_memory import make_shared
from protocol.wire.accounts import CACHED, N_BYTES, PREDICTED, READ, AccountTable
from protocol.wire.messages import TaskKey
from tests.fakes.worker import FakeWorker
from tests.gateway.rig import SLOW, Rig, one_more, started_stream, text_of

pytestmark = pytest.mark.slow


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path, heartbeat_s=0.1) as one:
        yield one


@asynccontextmanager
async def killed(rig: Rig, *, epochs: int = 0) -> AsyncIterator[tuple[AccountTable, TaskStream]]:
    """Run a worker with a table and a task; after the block it dies, and another one goes on.

    The table is of a run so many epochs later than that of the worker.
    """
    fake = FakeWorker(rig.endpoint, replace(SLOW, name="a"))
    fake.accounts, memory = make_shared(N_BYTES)
    table = AccountTable(memory, fake.epoch + epochs)
    try:
        await fake.start()
        await rig.until(1)
        stream = await started_stream(rig, fake, "one two three", 1)
        yield table, stream
        async with one_more(rig, "b"):
            await fake.die()
            await text_of(stream)
    finally:
        os.close(fake.accounts)


async def test_what_a_killed_worker_has_computed_and_not_told_counts(rig: Rig) -> None:
    async with killed(rig) as (table, stream):
        # Another gateway's task of the same number, and one that has ended long ago.
        for key in (TaskKey(stream.task_id, 0, 4), TaskKey(stream.task_id + 1, 0, 0)):
            table.open(key)[PREDICTED] = 1000
        row = table.open(TaskKey(stream.task_id))
        row[READ], row[CACHED], row[PREDICTED] = 11, 5, 3
        table.sums[READ], table.sums[CACHED], table.sums[PREDICTED] = 111, 55, 33
    lost, last = stream.task.attempts
    assert (lost.n_read, lost.n_reused, lost.n_predicted) == (11, 5, 3)
    assert last.n_predicted < 1000
    (sums,) = (one for (name, _), one in rig.metrics.stats.sums().items() if name == "a")
    assert (sums["n_prompt"], sums["n_cached"], sums["n_predicted"]) == (111, 55, 33)


async def test_the_accounts_of_another_run_count_nothing(rig: Rig) -> None:
    async with killed(rig, epochs=1) as (table, stream):
        table.open(TaskKey(stream.task_id))[READ] = 1000
    assert stream.task.attempts[0].n_read < 1000


@pytest.mark.parametrize("place", [READ, CACHED, PREDICTED])
@pytest.mark.parametrize("n", [-5, 1 << 30, 1 << 62])
async def test_accounts_that_cannot_be_count_nothing(rig: Rig, place: int, n: int) -> None:
    async with killed(rig) as (table, stream):
        table.open(TaskKey(stream.task_id))[place] = n
        table.sums[place] = -5
    lost = stream.task.attempts[0]
    assert max(lost.n_read, lost.n_reused, lost.n_predicted) < 1000
    assert min(lost.n_read, lost.n_reused, lost.n_predicted) >= 0
    assert min(min(one.values()) for one in rig.metrics.stats.sums().values()) >= 0
