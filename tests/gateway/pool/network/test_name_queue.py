"""Two workers of one name: a living worker keeps it, a dead one loses it to the newcomer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.pool.network import name_queue
from gateway.pool.network.name_queue import NameQueue
from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker
from tests.gateway.rig import Rig, text_of

QUICK = 0.1


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr("gateway.pool.network.reception._REST_S", QUICK)
    async with Rig(tmp_path, heartbeat_s=QUICK) as one:
        yield one


async def test_a_second_worker_of_a_name_is_refused_and_the_first_goes_on(rig: Rig) -> None:
    async with rig.workers(FakeOptions(name="a", free_running=False)) as [first]:
        stream = rig.generate("goes on")
        await first.got(m.Generate)
        async with FakeWorker(rig.endpoint, FakeOptions(name="a")) as second:
            await second.got(m.Refused)
            assert not any(isinstance(one, m.Welcome) for one in second.received)
            await first.step(3)
            assert await text_of(stream) == "goes on"
            done = rig.waiter.lines[-1]
            assert (first.n_connections, second.n_connections) == (1, 1)
    lines = "\n".join(rig.waiter.lines)
    assert 'worker refused worker=a cause="a worker named' in lines
    assert not any("lost" in line for line in rig.waiter.lines[: rig.waiter.lines.index(done)])


@pytest.mark.slow
async def test_the_successor_of_a_worker_that_hangs_gets_its_name(rig: Rig) -> None:
    async with rig.workers(FakeOptions(name="a")) as [first]:
        first.go_silent()
        async with FakeWorker(rig.endpoint, FakeOptions(name="a")) as second:
            await second.got(m.Opened)
            await rig.generate("x y").result()
            assert any(isinstance(one, m.Generate) for one in second.received)


async def test_the_successor_of_a_killed_worker_need_not_wait(rig: Rig) -> None:
    async with rig.workers(FakeOptions(name="a")) as [first]:
        await first.die()
        async with asyncio.timeout(2.5), FakeWorker(rig.endpoint, FakeOptions(name="a")) as second:
            await second.got(m.Opened)


async def test_a_worker_that_dials_anew_is_no_rival_of_itself(rig: Rig) -> None:
    async with rig.workers(FakeOptions(name="a")) as [first]:
        await first.reconnect()
        await rig.holds(lambda: sum("joined" in line for line in rig.waiter.lines) == 2)
        await rig.until(1)
    assert not any("waits" in line for line in rig.waiter.lines)


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_queue, "_MAX_WAITING", 2)
    monkeypatch.setattr(name_queue, "_MAX_FRAMES", 3)
    waiting: NameQueue[bytes] = NameQueue(1.0)
    out = [waiting.wait(str(i).encode(), "a", b"hello", 0.0) for i in range(4)]
    assert [one.identity if one else None for one in out] == [None, None, b"0", b"1"]
    assert all(waiting.keep(b"2", b"x") for _ in range(9))
    assert not waiting.keep(b"0", b"x")
    assert waiting.refused("a", 0.5) == waiting.refused("b", 2.0) == []
    found = waiting.take_next("a")
    assert found is not None and (found.identity, len(found.frames)) == (b"2", 3)
    assert [one.identity for one in waiting.refused("a", 1.5)] == [b"3"]
    assert waiting.take_next("a") is None and not waiting


def test_what_all_that_wait_have_sent_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty-four with 16 MiB each had a gigabyte."""
    monkeypatch.setattr(name_queue, "_MAX_BYTES", 100)
    waiting: NameQueue[bytes] = NameQueue(1.0)
    for i in range(8):
        assert waiting.wait(str(i).encode(), "a", b"x" * 10, 0.0, 10) is None
    assert all(waiting.keep(str(i).encode(), b"x" * 10, 10) for i in range(8))
    largest = waiting.wait(b"8", "a", b"x" * 50, 0.0, 50)
    assert largest is not None and largest.identity == b"8"
    kept = []
    while (one := waiting.take_next("a")) is not None:
        kept += one.frames
    assert sum(map(len, kept)) == 100
