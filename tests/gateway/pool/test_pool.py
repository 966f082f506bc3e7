"""The pool with real sockets and fake workers: tasks, models, health."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.metrics.metrics import Metrics
from gateway.pool.pool import Pool
from protocol.config.config import GatewayConfig
from protocol.errors import ConfigError, ErrorCode, InvalidRequest, TaskError
from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import failed
from tests.gateway.rig import SLOW, Rig, reach, text_of


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path, heartbeat_s=0.1) as one:
        yield one


async def test_a_task_streams_from_a_worker(rig: Rig) -> None:
    async with rig.workers(FakeOptions()):
        stream = rig.generate("to be or not")
        started = await stream.receive()
        assert started == m.Started(slot=0, n_prompt=4, seed=7)
        assert await text_of(stream) == "to be or not"
    assert repr(rig.pool).endswith("tasks=0 waiting=0 taken=0>>")


async def test_many_tasks_share_the_workers_and_never_mix(rig: Rig) -> None:
    async with rig.workers(FakeOptions(name="a"), FakeOptions(name="b")):
        streams = [rig.generate(f"task {i} of ten") for i in range(10)]
        texts = await asyncio.gather(*map(text_of, streams))
        assert texts == [f"task {i} of ten" for i in range(10)]
        assert {stream.task.worker_name for stream in streams} == {"a", "b"}


async def test_slot_numbers_are_pool_wide(rig: Rig) -> None:
    options = (FakeOptions(name="a", n_slots=2), FakeOptions(name="b", n_slots=2))
    async with rig.workers(*options):
        slots = []
        for i in range(4):
            done = await rig.generate(id_slot=i).result()
            assert isinstance(done, m.Done)
            slots.append(done.slot)
        assert slots == [0, 1, 2, 3]
        reports = await rig.pool.calls.slots()
        assert [report.id for report, _ in reports] == [0, 1, 2, 3]


async def test_calls_need_no_slot(rig: Rig) -> None:
    async with rig.workers(SLOW):
        for _ in range(5):
            rig.generate()
        task = m.Tokenize(content="a b")
        answer = await rig.pool.submit(task, model="fake").result()
        assert isinstance(answer, m.Tokenized)
        assert len(array("i", answer.tokens)) == 2


async def test_close_cancels_the_running_task_and_frees_the_slot(rig: Rig) -> None:
    async with rig.workers(FakeOptions(n_slots=1, n_prefetch=0, free_running=False)) as [fake]:
        first, second = rig.generate(), rig.generate("next")
        await fake.got(m.Generate)
        await fake.step()
        await reach(first, m.Delta)
        first.close()
        first.close()
        await fake.got(m.Cancel)
        await fake.step()
        await fake.got(m.Generate, 2)
        await fake.step(3)
        assert await text_of(second) == "next"


async def test_close_drops_a_waiting_task(rig: Rig) -> None:
    async with rig.workers(FakeOptions(n_slots=1, n_prefetch=0, free_running=False)):
        rig.generate()
        waiting = rig.generate()
        assert rig.pool.health().n_deferred == 1
        waiting.close()
        assert rig.pool.health().n_deferred == 0


async def test_a_failed_task_raises_what_the_worker_said(rig: Rig) -> None:
    async with rig.workers(FakeOptions()) as [fake]:
        fake.engine.fail_next = failed(ErrorCode.CONTEXT_EXCEEDED, "too long")
        with pytest.raises(TaskError, match="too long") as caught:
            await rig.generate().receive()
        assert caught.value.code is ErrorCode.CONTEXT_EXCEEDED


async def test_a_task_waits_only_so_long_for_a_slot(tmp_path: Path) -> None:
    options = FakeOptions(n_slots=1, n_prefetch=0, free_running=False)
    async with Rig(tmp_path, queue_timeout_s=0.1) as rig, rig.workers(options):
        rig.generate()
        with pytest.raises(TaskError, match=r"within 0\.1 s") as caught:
            await rig.generate().receive()
        assert caught.value.code is ErrorCode.OVERLOADED
        assert caught.value.detail["retry_after_s"] >= 1


async def test_a_full_queue_refuses(tmp_path: Path) -> None:
    options = FakeOptions(n_slots=1, n_prefetch=0, free_running=False)
    async with Rig(tmp_path, queue_size=1) as rig, rig.workers(options):
        rig.generate()
        rig.generate()
        with pytest.raises(TaskError, match="queue is full"):
            rig.generate()


async def test_health_follows_the_workers(rig: Rig) -> None:
    assert rig.pool.health().status == "loading model"
    loading = FakeOptions(n_slots=1, n_prefetch=0, ready=False, free_running=False)
    async with rig.workers(loading) as [fake]:
        await fake.got(m.Welcome)
        assert rig.pool.health().status == "loading model"
        await fake.ready()
        await rig.until(1)
        assert rig.pool.health().status == "ok"
        rig.generate()
        health = rig.pool.health()
        assert (health.status, health.slots_idle, health.slots_processing) == (
            "no slot available",
            0,
            1,
        )


async def test_a_pool_that_stays_empty_is_in_error(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.pool.pool._NO_WORKER_S", -1.0)
    assert rig.pool.health().status == "error"


async def test_one_model_goes_by_any_name(rig: Rig) -> None:
    async with rig.workers(FakeOptions()):
        assert rig.pool.status.card("gpt-4").name == "fake"
        assert rig.pool.status.card(None).name == "fake"
        assert [card.name for card in rig.pool.status.cards()] == ["fake"]


async def test_of_several_models_one_must_be_named(rig: Rig) -> None:
    async with rig.workers(FakeOptions(), FakeOptions(name="b", model="other")):
        assert rig.pool.status.card("other").name == "other"
        with pytest.raises(InvalidRequest, match="model name is missing"):
            rig.pool.status.card(None)
        with pytest.raises(InvalidRequest, match="model 'x' not found") as caught:
            rig.pool.status.card("x")
        assert caught.value.param == "model"
        assert [card.name for _, card in await rig.pool.calls.slots("other")] == ["other"] * 2


async def test_a_model_that_is_being_loaded_is_not_there_yet(rig: Rig) -> None:
    with pytest.raises(TaskError, match="Loading model"):
        rig.pool.status.card(None)
    async with rig.workers(FakeOptions(ready=False)) as [fake]:
        await fake.got(m.Welcome)
        with pytest.raises(TaskError, match="Loading model") as caught:
            rig.pool.status.card("fake")
        assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_drained_waits_for_what_runs(rig: Rig) -> None:
    async with rig.workers(FakeOptions(free_running=False)) as [fake]:
        stream = rig.generate("a b")
        await fake.got(m.Generate)
        rig.pool.dispatcher.drain()
        with pytest.raises(TaskError, match="shutting down"):
            rig.generate()
        drained = asyncio.create_task(rig.pool.transport.streams.drained())
        await fake.step(4)
        assert await text_of(stream) == "a b"
        await drained
        assert rig.pool.health().status == "draining"


async def test_a_replaced_gateway_refuses_at_once_what_none_of_its_workers_can_do(rig: Rig) -> None:
    """Workers that start after it was replaced dial only the new gateway."""
    async with rig.workers(FakeOptions(free_running=False)) as [fake]:
        running, waiting = rig.generate("a b"), rig.generate(id_slot=0)
        await fake.got(m.Generate)
        rig.pool.retire()
        await fake.step(4)
        assert await text_of(running) == "a b"
        stream = rig.generate("c d")
    for one in (waiting, stream):
        with pytest.raises(TaskError, match="served by a new gateway: ask again") as caught:
            await one.result()
        assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_close_of_the_pool_fails_what_is_left(rig: Rig) -> None:
    async with rig.workers(SLOW):
        stream = rig.generate()
        await rig.pool.close()
        with pytest.raises(TaskError, match="shutting down"):
            await stream.receive()


@pytest.mark.parametrize(
    ("bind", "reason"),
    [
        ((), "no endpoint"),
        (("tcp://127.0.0.1:5555",), "tcp needs keys"),
        (("ipc:///no/such/directory/x",), "/no/such/directory/x"),
    ],
)
async def test_an_endpoint_that_cannot_be_had_is_named(bind: tuple[str, ...], reason: str) -> None:
    pool = Pool(GatewayConfig(bind=bind), Metrics())
    with pytest.raises(ConfigError, match=reason):
        await pool.start()
    await pool.close()
