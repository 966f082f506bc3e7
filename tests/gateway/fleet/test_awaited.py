"""A gateway whose workers are on their way holds requests instead of refusing them."""

import asyncio
from pathlib import Path

import httpx
import pytest

from gateway.fleet import awaited
from tests.fakes.echo import FakeOptions
from tests.gateway.fleet.test_admin_api import Supervisor
from tests.gateway.inprocess import Running, running, until

BODY = {"prompt": "Hello", "n_predict": 4}


def ask(gateway: Running) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(gateway.client.post("/completion", json=BODY))


async def test_what_comes_before_the_workers_waits_for_them(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor, running(tmp_path, control=supervisor.path) as it:
        await until(lambda: bool(supervisor.lines))
        early = ask(it)
        health = await it.client.get("/health")
        assert health.status_code == 503, "health says what is there"
        assert not early.done()
        await it.add_worker(FakeOptions(name="h/w0"))
        assert (await early).status_code == 200


async def test_a_worker_that_never_comes_is_not_awaited_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaited, "_LIMIT_S", 0.0)
    async with Supervisor(tmp_path) as supervisor, running(tmp_path, control=supervisor.path) as it:
        await until(lambda: bool(supervisor.lines))
        assert (await ask(it)).status_code == 503
        monkeypatch.setattr(awaited, "_LIMIT_S", 1e9)
        assert (await ask(it)).status_code == 503


async def test_without_a_supervisor_nobody_waits(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        assert (await ask(it)).status_code == 503
