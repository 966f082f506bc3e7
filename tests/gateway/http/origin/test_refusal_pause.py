"""A client that asks again at once waits for its next refusal."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from gateway.http.origin import refusal_pause
from gateway.http.origin.refusal_pause import PAUSE_S, RefusalPause
from gateway.pool.tenants.allowances import Allowances
from protocol.errors import ErrorCode, TaskError
from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import Running, running, until

LONG = {"prompt": "a b c d", "ignore_eos": True}


@pytest.fixture
async def full(tmp_path: Path) -> AsyncIterator[Running]:
    """A gateway whose one slot and one place in the queue are taken."""
    async with running(tmp_path, queue_size=1) as one:
        await one.add_worker(FakeOptions(n_slots=1, n_prefetch=0, free_running=False))
        asking = [asyncio.create_task(one.post("/completion", LONG))]
        await one.workers[0].got(m.Generate)
        asking.append(asyncio.create_task(one.post("/completion", LONG)))
        await until(lambda: one.pool.health().n_deferred == 1)
        yield one
        for task in asking:
            task.cancel()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Event]:
    """The refusals that wait: each for its event, however long the pause."""
    waiting: list[asyncio.Event] = []

    class Sleep:
        @staticmethod
        async def sleep(_: float) -> None:
            waiting.append(asyncio.Event())
            await waiting[-1].wait()

        get_running_loop = staticmethod(asyncio.get_running_loop)

    monkeypatch.setattr(refusal_pause, "asyncio", Sleep)
    monkeypatch.setattr(refusal_pause, "PAUSE_S", 1e6)
    return waiting


async def test_the_second_refusal_waits_and_is_the_same(
    full: Running, held: list[asyncio.Event]
) -> None:
    first = await full.post("/completion", LONG)
    asking = asyncio.create_task(full.post("/completion", {**LONG, "stream": True}))
    await until(lambda: len(held) == 1)
    assert (await full.client.get("/health")).status_code == 200
    assert not asking.done()
    held[0].set()
    second = await asking
    assert [first.status_code, second.status_code] == [429, 429]
    assert "retry-after" in second.headers


async def test_refusals_of_any_endpoint_wait(
    full: Running, held: list[asyncio.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"input": "a text", "query": "a text", "documents": ["one"]}
    await full.post("/completion", LONG)
    refused = TaskError(ErrorCode.OVERLOADED, "too many requests a minute")

    def refuse(*_: object) -> None:
        raise refused

    monkeypatch.setattr(Allowances, "request", refuse)
    for n, path in enumerate(("/v1/embeddings", "/v1/rerank"), 1):
        asking = asyncio.create_task(full.post(path, body))
        await until(partial(_has, held, n))
        held[-1].set()
        assert (await asking).status_code == 429


def _has(held: list[asyncio.Event], n: int) -> bool:
    return len(held) == n


async def test_a_client_that_leaves_is_not_held(
    full: Running, held: list[asyncio.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[RefusalPause] = []
    hold = RefusalPause.hold

    async def noted(self: RefusalPause, *args: object) -> None:
        pauses.append(self)
        await hold(self, *args)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(RefusalPause, "hold", noted)
    await full.post("/completion", LONG)
    async with httpx.AsyncClient(base_url=full.url) as client:
        asking = asyncio.create_task(client.post("/completion", json=LONG))
        await until(lambda: len(held) == 1)
        assert pauses[-1].n_held == 1
        asking.cancel()
    await until(lambda: not pauses[-1].n_held)


def test_one_refusal_a_second_leaves_at_once() -> None:
    pause = RefusalPause()
    due = [pause.due_s("a", at) for at in (0.0, 0.1, 0.9, 1.0, 1.1, 5.0)]
    assert due == [0.0, PAUSE_S, PAUSE_S, 0.0, PAUSE_S, 0.0]
    assert pause.due_s("b", 5.0) == 0.0


def test_few_wait_at_once_and_few_tenants_are_remembered() -> None:
    pause = RefusalPause()
    pause.due_s("a", 0.0)
    pause.n_held = 1000
    assert pause.due_s("a", 0.1) == 0.0
    pause.n_held = 0
    for i in range(5000):
        pause.due_s(f"t{i}", 0.2)
    assert repr(pause) == "<RefusalPause held=0 tenants=4096>"


async def test_other_errors_never_wait(held: list[asyncio.Event]) -> None:
    pause = RefusalPause()

    async def receive() -> dict[str, str]:
        raise AssertionError("nobody looks whether the client is there")

    for _ in range(2):
        await pause.hold("a", TaskError(ErrorCode.UNAVAILABLE, "no worker"), receive)
    assert not held
