"""Workers whose model is unloaded: how they are shown, and which requests load it again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.pool.dispatch.actions import Assign
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.status import ModelState, PoolStatus
from gateway.pool.tasks.spec import TaskSpec
from protocol.wire.messages import Heartbeat, Inspect
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker
from tests.gateway.dispatching import card
from tests.gateway.inprocess import Running, running, until


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Running]:
    """Two workers of one model, both awake."""
    async with running(tmp_path, metrics=True) as gateway:
        for name in ("w0", "w1"):
            await gateway.add_worker(FakeOptions(name=name))
        yield gateway


async def set_sleeping(pair: Running, worker: FakeWorker, value: bool) -> None:
    """Let a worker report that it sleeps or not; wait until the gateway knows."""
    worker.engine.is_sleeping = value
    await worker.send(worker.engine.heartbeat())
    state = "sleeping" if value else "ready"
    name = worker.options.name
    await until(lambda: any((v.name, v.state) == (name, state) for v in pair.pool.status.workers()))


async def shown(pair: Running) -> tuple[bool, str]:
    props = (await pair.client.get("/props")).json()
    models = (await pair.client.get("/v1/models")).json()
    return props["is_sleeping"], models["data"][0]["status"]["value"]


async def test_a_model_sleeps_when_all_its_workers_do(pair: Running) -> None:
    first, second = pair.workers
    assert await shown(pair) == (False, "loaded")
    await set_sleeping(pair, first, True)
    assert await shown(pair) == (False, "loaded")
    await set_sleeping(pair, second, True)
    assert await shown(pair) == (True, "sleeping")
    await set_sleeping(pair, first, False)
    assert await shown(pair) == (False, "loaded")


async def test_looking_at_the_server_wakes_nobody(pair: Running) -> None:
    for worker in pair.workers:
        await set_sleeping(pair, worker, True)
        worker.received.clear()
    paths = (
        "/health",
        "/health?include_slots",
        "/readyz",
        "/props",
        "/models",
        "/metrics",
        "/slots",
    )
    for path in paths:
        assert (await pair.client.get(path)).status_code == 200
    assert [worker.received for worker in pair.workers] == [[], []]
    health = (await pair.client.get("/health?include_slots")).json()
    assert (health["slots_idle"], len(health["slots"])) == (4, 4)
    assert 'state="sleeping"} 2.0' in (await pair.client.get("/metrics")).text
    assert len((await pair.client.get("/slots")).json()) == 4


async def test_those_who_ask_for_the_slots_at_once_share_one_question(pair: Running) -> None:
    rows = await asyncio.gather(*(pair.pool.calls.slots() for _ in range(50)))
    assert {len(row) for row in rows} == {4}
    questions = [task for w in pair.workers for task in w.received if isinstance(task, Inspect)]
    assert len(questions) == 2


async def test_a_task_goes_to_whoever_is_awake(pair: Running) -> None:
    first, second = pair.workers
    await set_sleeping(pair, first, True)
    first.received.clear()
    for _ in range(3):
        assert (await pair.post("/completion", {"prompt": "a b"})).status_code == 200
        assert (await pair.post("/tokenize", {"content": "a b"})).status_code == 200
    assert first.received == []
    await set_sleeping(pair, second, True)
    assert (await pair.post("/completion", {"prompt": "a b"})).status_code == 200


def test_a_sleeping_worker_is_woken_before_anybody_waits() -> None:
    dispatcher = Dispatcher()
    for name in ("awake", "asleep"):
        dispatcher.worker_hello(name, name, "m")
        dispatcher.worker_ready(name, card(1, 1), 0.0)
    dispatcher.connected.sleeps("asleep", True)
    chosen: list[Any] = []
    for task_id in range(4):
        spec = TaskSpec(task_id=task_id, model="m", tenant="", n_tokens=1, takes_credit=True)
        chosen += [act.worker for act in dispatcher.submit(spec, 0.0) if isinstance(act, Assign)]
    assert chosen == ["awake", "asleep", "awake", "asleep"]


def test_a_model_is_as_its_most_awake_worker() -> None:
    dispatcher = Dispatcher()
    assert PoolStatus(dispatcher).state("m") is ModelState.UNLOADED
    dispatcher.worker_hello("a", "a", "m")
    assert PoolStatus(dispatcher).state("m") is ModelState.LOADING
    dispatcher.worker_ready("a", card(), 0.0)
    assert PoolStatus(dispatcher).state("m") is ModelState.LOADED
    dispatcher.connected.sleeps("a", True)
    dispatcher.worker_hello("b", "b", "m")
    assert PoolStatus(dispatcher).state("m") is ModelState.SLEEPING


def test_a_heartbeat_of_an_older_worker_says_that_it_is_awake() -> None:
    assert not Heartbeat(step=0, busy=0).is_sleeping
