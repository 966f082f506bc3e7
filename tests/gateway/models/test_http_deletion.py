"""Models of the Hugging Face cache, deleted over HTTP, with a fake supervisor."""

import asyncio
import json
from pathlib import Path

from protocol.process.control import ModelInfo
from tests.fakes.supervisor import FakeSupervisor
from tests.gateway.inprocess import Running, until
from tests.gateway.models.test_http_models import complete, repr_of, routing, said, states


async def cached_model(gateway: Running, supervisor: FakeSupervisor) -> None:
    """Let the supervisor find the model u/m:F16 in the cache."""
    supervisor.models.append(ModelInfo(name="u/m:F16", source="cache"))
    await gateway.client.get("/models?reload=1")


async def test_a_model_of_the_cache_is_unloaded_and_deleted(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        await cached_model(gateway, supervisor)
        (_, shown) = (await gateway.client.get("/models")).json()["data"]
        assert (shown["source"], shown["can_remove"]) == ("cache", True)
        assert (await complete(gateway, "u/m:F16")).status_code == 200
        async with gateway.client.stream("GET", "/models/sse") as events:
            answer = await gateway.client.delete("/models?model=u/m:F16")
            assert (answer.status_code, answer.json()) == (200, {"success": True})
            seen = []
            async for line in events.aiter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line[6:]))
                    if seen[-1]["event"] == "model_remove":
                        break
        assert seen[-1] == {"model": "u/m:F16", "event": "model_remove"}
        assert supervisor.orders[-2:] == ["unload u/m:F16", "delete u/m:F16"]
        assert await states(gateway) == {"a": "unloaded"}


async def test_a_deletion_that_fails_says_why(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        await cached_model(gateway, supervisor)
        supervisor.error = "permission denied"
        answer = await gateway.client.delete("/models?model=u/m:F16")
        assert said(answer) == "500 model not deleted: permission denied"


async def test_only_what_is_in_the_cache_can_be_deleted(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, _):
        for query, answer in (
            ("", "400 model must be a non-empty string"),
            ("?model=z", "404 model name=z is not found"),
            ("?model=a", "400 model name=a is not removable (not from cache)"),
        ):
            assert said(await gateway.client.delete(f"/models{query}")) == answer


async def test_who_waits_for_a_model_does_not_bring_it_back_while_it_is_deleted(
    tmp_path: Path,
) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        await cached_model(gateway, supervisor)
        assert (await complete(gateway, "u/m:F16")).status_code == 200
        supervisor.held_unloads["u/m:F16"] = asyncio.Event()
        deleted = asyncio.create_task(gateway.client.delete("/models?model=u/m:F16"))
        await until(lambda: supervisor.orders[-1] == "unload u/m:F16")
        waits = asyncio.create_task(complete(gateway, "u/m:F16"))
        await until(lambda: "u/m:F16:1" in repr_of(gateway))
        supervisor.held_unloads["u/m:F16"].set()
        assert (await deleted).status_code == 200
        assert said(await waits) == "400 model 'u/m:F16' not found"
        assert supervisor.orders[-2:] == ["unload u/m:F16", "delete u/m:F16"]


async def test_a_deletion_is_not_answered_by_the_failure_of_a_reload(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        await cached_model(gateway, supervisor)
        held = supervisor.held_deletions["u/m:F16"] = asyncio.Event()
        deleted = asyncio.create_task(gateway.client.delete("/models?model=u/m:F16"))
        await until(lambda: supervisor.orders[-1] == "delete u/m:F16")
        supervisor.error = "models.ini is broken"
        reloaded = await gateway.client.get("/models?reload=1")
        assert said(reloaded) == "500 models not reloaded: models.ini is broken"
        assert not deleted.done()
        supervisor.error = ""
        held.set()
        assert (await deleted).json() == {"success": True}
        assert await states(gateway) == {"a": "unloaded"}


async def test_a_deletion_whose_supervisor_hangs_up_fails(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        await cached_model(gateway, supervisor)
        supervisor.held_deletions["u/m:F16"] = asyncio.Event()
        deleted = asyncio.create_task(gateway.client.delete("/models?model=u/m:F16"))
        await until(lambda: supervisor.orders[-1] == "delete u/m:F16")
        supervisor.hang_up()
        assert said(await deleted) == "503 The supervisor does not answer"
