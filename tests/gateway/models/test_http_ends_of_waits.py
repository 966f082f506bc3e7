"""The ends of waits for a model: those of the request, of the server, and of the wait itself."""

import asyncio
from pathlib import Path

import httpx
import pytest

from gateway.models import manager
from tests.fakes.supervisor import FakeSupervisor
from tests.gateway.inprocess import Running, until
from tests.gateway.models.test_http_models import complete, repr_of, routing, said


@pytest.mark.parametrize("headers", [{"x-request-timeout": "0.1"}, {"x-slo-ttft-ms": "100"}])
async def test_the_time_of_a_request_counts_while_its_model_loads(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        supervisor.held["a"] = asyncio.Event()
        body = {"prompt": "hi there", "n_predict": 2, "model": "a"}
        refused = await gateway.post("/completion", body, headers=headers)
        assert refused.status_code == 429
        assert next(iter(headers)) in said(refused)
        assert "a:" not in repr_of(gateway)


async def test_who_waits_is_told_when_the_server_ends(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        supervisor.held["a"] = asyncio.Event()
        waits = asyncio.create_task(complete(gateway, "a"))
        await until(lambda: supervisor.orders == ["load a"])
        assert gateway.models is not None
        gateway.models.drain()
        assert said(await waits) == "503 The server is shutting down"
        assert said(await complete(gateway, "a")) == "503 The server is shutting down"


Asked = asyncio.Task[httpx.Response]


async def busy_and_waiting(gateway: Running, supervisor: FakeSupervisor) -> tuple[Asked, Asked]:
    """Have a request of `a` that does not end, and one of `b` that waits for its place."""
    assert (await complete(gateway, "a")).status_code == 200
    supervisor.workers["a"].go_silent()
    busy = asyncio.create_task(complete(gateway, "a"))
    await until(lambda: "requests=1" in repr_of(gateway))
    waits = asyncio.create_task(complete(gateway, "b"))
    await until(lambda: "b:1" in repr_of(gateway))
    return busy, waits


async def test_a_server_that_ends_loads_nothing_for_who_was_sent_away(tmp_path: Path) -> None:
    async with routing(tmp_path, "a", "b", models_max=1) as (gateway, supervisor):
        busy, waits = await busy_and_waiting(gateway, supervisor)
        assert gateway.models is not None
        gateway.models.drain()
        assert said(await waits) == "503 The server is shutting down"
        busy.cancel()
        await until(lambda: "requests=1" not in repr_of(gateway))
        assert supervisor.orders == ["load a"]
        assert "queue=[]" in repr_of(gateway)


async def test_a_model_that_is_never_idle_makes_room_for_one_that_waits_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "_PATIENCE_S", 0.02)
    async with routing(tmp_path, "a", "b", models_max=1) as (gateway, supervisor):
        busy, waits = await busy_and_waiting(gateway, supervisor)
        await until(lambda: "closing" in repr_of(gateway))
        younger = asyncio.create_task(complete(gateway, "a"))
        await until(lambda: "a:1" in repr_of(gateway))
        busy.cancel()
        assert (await waits).status_code == 200
        assert (await younger).status_code == 200
        assert supervisor.orders == ["load a", "unload a", "load b", "unload b", "load a"]


@pytest.mark.slow
async def test_the_wait_for_a_model_has_an_end(tmp_path: Path) -> None:
    async with routing(tmp_path, "a", timeout_s=1.0) as (gateway, supervisor):
        supervisor.held["a"] = asyncio.Event()
        answer = await complete(gateway, "a")
        assert answer.status_code == 429
        assert "were not loaded or unloaded within 1 s" in said(answer)
