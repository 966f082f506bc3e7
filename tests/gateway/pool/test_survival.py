"""A fault in one task ends that task only: messages, slots and loops of the others go on."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgpack
import pytest
import zmq

from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.network.connections import WorkerConnections
from gateway.pool.status import PoolStatus
from gateway.pool.tasks.stream import TaskStream
from protocol.errors import ErrorCode, TaskError
from protocol.wire import messages as m
from protocol.wire.sampling import SamplingParams
from tests.envelopes import payload_of
from tests.fakes.echo import FakeOptions
from tests.gateway.metrics.samples import scraped
from tests.gateway.rig import SLOW, Rig, reach, text_of


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path, heartbeat_s=0.1) as rig:
        yield rig


def hostile(rig: Rig) -> TaskStream:
    """Submit a task that msgpack cannot write; the readers of requests would refuse it."""
    params = SamplingParams(logit_bias=((2**64, 1.0),))
    task = m.Generate(prompt="x", params=params)
    return rig.pool.submit(task, model="fake")


async def test_a_task_that_cannot_be_sent_fails_and_returns_its_slot(rig: Rig) -> None:
    async with rig.workers(FakeOptions(n_slots=2)):
        for _ in range(5):  # more often than there are slots
            before, bad, after = rig.generate("a b"), hostile(rig), rig.generate("c d")
            with pytest.raises(TaskError) as caught:
                await bad.result()
            assert caught.value.code is ErrorCode.INVALID_REQUEST
            assert [await text_of(one) for one in (before, after)] == ["a b", "c d"]
        assert rig.pool.health().slots_idle == 2


async def test_a_message_that_cannot_be_read_ends_its_own_task(rig: Rig) -> None:
    async with rig.workers(SLOW) as [fake]:
        bad, good = rig.generate("a b"), rig.generate("c d")
        await fake.got(m.Generate, 2)
        broken = [0, [["delta", bad.task_id, 0, -1, {"tokens": [True]}]]]
        broken[0] = fake._sent
        await fake.send_raw(msgpack.packb(broken))
        with pytest.raises(TaskError) as caught:
            await bad.result()
        assert caught.value.code is ErrorCode.INTERNAL
        await fake.got(m.Cancel)
        reading = asyncio.create_task(text_of(good))
        while not reading.done():
            await fake.step()
            await asyncio.sleep(0)
        assert await reading == "c d"
        assert rig.metrics.faults[("message",)] == 1


async def test_an_exception_at_one_message_leaves_the_others_of_its_frame(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = TaskStream.push_delta
    async with rig.workers(FakeOptions(n_slots=2)):
        bad = rig.generate("a b")

        def pushes(stream: TaskStream, delta: m.Delta, now: float) -> None:
            if stream is bad:
                raise RuntimeError("a fault of ours")
            push(stream, delta, now)

        monkeypatch.setattr(TaskStream, "push_delta", pushes)
        good = rig.generate("c d")
        with pytest.raises(TaskError) as caught:
            await bad.result()
        assert caught.value.code is ErrorCode.INTERNAL
        assert await text_of(good) == "c d"
        assert any(f"task={bad.task_id}" in line for line in rig.waiter.lines)
        await rig.pool.transport.streams.drained()
        again = [rig.generate("e"), rig.generate("f")]
        assert [await text_of(one) for one in again] == ["e", "f"]


async def test_an_action_that_raises_gives_its_credit_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = WorkerConnections.post
    async with rig.workers(FakeOptions(n_slots=1)):

        def posts(peers: WorkerConnections, key: str, item: m.FrameItem) -> None:
            message = payload_of(item)
            if isinstance(message, m.Generate) and message.prompt == "bad":
                raise RuntimeError("a fault of ours")
            post(peers, key, item)

        monkeypatch.setattr(WorkerConnections, "post", posts)
        for _ in range(3):
            with pytest.raises(TaskError):
                await rig.generate("bad").result()
        assert await text_of(rig.generate("c d")) == "c d"


async def test_the_clock_goes_on_after_an_exception(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expire(dispatcher: Dispatcher, now: float) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Dispatcher, "expire", expire)
    async with rig.workers(FakeOptions()):
        await rig.holds(lambda: rig.metrics.faults[("tick",)] >= 2)
        assert await text_of(rig.generate("c d")) == "c d"


async def test_a_frame_that_breaks_its_reader_leaves_the_next_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.workers(SLOW) as [fake]:
        hear, broken = WorkerConnections._take, [True]

        def hears(peers: WorkerConnections, identity: bytes, data: zmq.Frame) -> None:
            hear(peers, identity, data)
            if broken.pop() if broken else False:
                raise RuntimeError("a fault of ours")

        monkeypatch.setattr(WorkerConnections, "_take", hears)
        stream = rig.generate("a b")
        await fake.got(m.Generate)
        await fake.step(4)
        await reach(stream, m.Done)
        assert rig.metrics.faults[("frame",)] == 1


async def test_a_part_of_the_metrics_that_raises_leaves_the_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def queue_depths(status: PoolStatus) -> dict[str, int]:
        depths.append(1)
        if len(depths) > 1:  # the first is asked for llama-server's own lines
            raise RuntimeError("a fault of ours")
        return {}

    depths: list[int] = []
    async with rig.workers(FakeOptions()):
        monkeypatch.setattr(PoolStatus, "queue_depths", queue_depths)
        text = scraped(rig.metrics, rig.pool.status)
    assert "llamapool_gateway_loop_lag_seconds" in text
    faults = re.search(r'llamapool_gateway_faults_total\{place="metrics"\} (\S+)', text)
    assert faults and float(faults[1]) == len(depths) - 1
