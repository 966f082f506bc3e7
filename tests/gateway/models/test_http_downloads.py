"""Models that are downloaded by order of a client, over HTTP and with a fake supervisor."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from protocol.process.control import DownloadReport, Listed, ModelInfo
from tests.fakes.supervisor import FakeSupervisor
from tests.gateway.inprocess import Running
from tests.gateway.models.test_http_models import routing, said, states

NAME = "u/m:F16"
STARTED = DownloadReport(model=NAME)
DOWNLOADING = {"model": NAME, "event": "model_status", "data": {"status": "downloading"}}


async def events_of(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


async def ask(
    gateway: Running, supervisor: FakeSupervisor, begins: DownloadReport
) -> httpx.Response:
    supervisor.begins = begins
    return await gateway.post("/models", {"model": NAME})


async def test_the_head_of_the_events_ends(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, _):
        answer = await gateway.client.head("/models/sse")
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"].startswith("text/event-stream")


async def test_a_download_is_listed_told_and_there_in_the_end(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        async with gateway.client.stream("GET", "/models/sse") as stream:
            events = events_of(stream)
            answer = await ask(gateway, supervisor, STARTED)
            assert (answer.status_code, answer.json()) == (200, {"success": True})
            assert await anext(events) == DOWNLOADING
            supervisor.send(DownloadReport(model=NAME, file="m.gguf", done=3, total=9))
            data = {"progress": {"m.gguf": {"done": 3, "total": 9}}}
            told = {"model": NAME, "event": "download_progress", "data": data}
            assert await anext(events) == told
            (_, shown) = (await gateway.client.get("/models")).json()["data"]
            assert shown["progress"] == data["progress"]
            assert await states(gateway) == {"a": "unloaded", NAME: "downloading"}
            supervisor.models.append(ModelInfo(name=NAME, source="cache"))
            supervisor.send(Listed(models=tuple(supervisor.models)))
            supervisor.send(DownloadReport(model=NAME, has_ended=True))
            assert await anext(events) == {"model": NAME, "event": "download_finished"}
        assert await states(gateway) == {"a": "unloaded", NAME: "unloaded"}


async def test_a_download_that_fails_later_is_told_as_an_event(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        async with gateway.client.stream("GET", "/models/sse") as stream:
            events = events_of(stream)
            assert (await ask(gateway, supervisor, STARTED)).status_code == 200
            assert await anext(events) == DOWNLOADING
            supervisor.send(DownloadReport(model=NAME, has_ended=True, error="no room"))
            assert await anext(events) == {"model": NAME, "event": "download_failed"}
        assert await states(gateway) == {"a": "unloaded"}


async def test_a_download_that_cannot_begin_says_why(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        failed = DownloadReport(model=NAME, has_ended=True, error="cannot fetch u/m")
        assert said(await ask(gateway, supervisor, failed)) == "400 cannot fetch u/m"
        assert (await ask(gateway, supervisor, STARTED)).status_code == 200, "it is tried again"


async def test_a_download_that_ended_while_the_supervisor_was_away_is_listed_no_more(
    tmp_path: Path,
) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        await ask(gateway, supervisor, STARTED)
        async with gateway.client.stream("GET", "/models/sse") as stream:
            events = events_of(stream)
            supervisor.hang_up()
            await supervisor.listen()
            assert await anext(events) == {"model": NAME, "event": "download_failed"}
        assert await states(gateway) == {"a": "unloaded"}


async def test_a_gateway_hears_at_once_of_the_downloads_that_run(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        supervisor.downloads = (NAME,)
        async with gateway.client.stream("GET", "/models/sse") as stream:
            supervisor.hang_up()
            await supervisor.listen()
            assert await anext(events_of(stream)) == DOWNLOADING
        assert await states(gateway) == {"a": "unloaded", NAME: "downloading"}


async def test_a_download_is_given_up_by_unloading(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        await ask(gateway, supervisor, STARTED)
        unload = {"model": NAME}
        answer = await gateway.post("/models/unload", unload)
        assert (answer.status_code, answer.json()) == (200, {"success": True})
        assert supervisor.orders == [f"download {NAME}", f"unload {NAME}"]
        assert await states(gateway) == {"a": "unloaded"}
        assert said(await gateway.post("/models/unload", unload)) == "400 model is not found"


async def test_a_download_is_given_up_by_a_deletion(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        await ask(gateway, supervisor, STARTED)
        assert (await gateway.client.delete(f"/models?model={NAME}")).json() == {"success": True}
        assert supervisor.orders == [f"download {NAME}", f"delete {NAME}"]


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({}, "400 model must be a non-empty string"),
        ({"model": "a"}, "400 model 'a' already exists"),
        ({"model": NAME}, f"400 model '{NAME}' already exists"),
        ({"model": "../x"}, "400 model must be USER/NAME or USER/NAME:QUANT"),
        ({"model": "u/m --x"}, "400 model must be USER/NAME or USER/NAME:QUANT"),
    ],
)
async def test_what_cannot_be_downloaded_is_refused(
    tmp_path: Path, body: dict[str, Any], answer: str
) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        await ask(gateway, supervisor, STARTED)
        assert said(await gateway.post("/models", body)) == answer
        assert supervisor.orders == [f"download {NAME}"]


async def test_two_who_ask_at_once_wait_for_one_download(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        supervisor.begins = STARTED
        asked = [gateway.post("/models", {"model": NAME}) for _ in range(2)]
        codes = sorted([one.status_code for one in await asyncio.gather(*asked)])
        assert codes in ([200, 200], [200, 400]), "the second may come when it has started"


async def test_without_the_cache_nothing_is_downloaded(tmp_path: Path) -> None:
    async with routing(tmp_path, "a", models_cache=False) as (gateway, _):
        assert said(await gateway.post("/models", {"model": NAME})).startswith("501 This server")
