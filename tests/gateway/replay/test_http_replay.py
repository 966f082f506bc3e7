"""Streams that go on without their client, over real HTTP with a fake worker behind."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from protocol.config.limits import LimitsConfig
from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker
from tests.gateway.inprocess import Running, running, until
from tests.gateway.keys.test_http_keys import as_, keys
from tests.gateway.models.test_http_models import routing

STEPPED = FakeOptions(n_slots=1, n_prefetch=0, free_running=False)
WORDS = {"prompt": "a b c d", "stream": True}
ENDLESS = {**WORDS, "ignore_eos": True}


@pytest.fixture
async def stepped(tmp_path: Path) -> AsyncIterator[Running]:
    """A gateway whose one worker has one slot and moves only by `step`."""
    async with running(tmp_path, ping_interval_s=0) as one:
        await one.add_worker(STEPPED)
        yield one


def of(name: str, **headers: str) -> dict[str, str]:
    return {"X-Conversation-Id": name, **headers}


async def opened(
    gateway: Running, body: dict[str, Any], headers: dict[str, str], n_steps: int = 2
) -> httpx.Response:
    """Open a kept stream and let the worker take some steps."""
    request = gateway.client.build_request("POST", "/completion", json=body, headers=headers)
    sending = asyncio.create_task(gateway.client.send(request, stream=True))
    await gateway.workers[0].got(m.Generate)
    await gateway.workers[0].step(n_steps)
    return await sending


async def hung_up(gateway: Running, response: httpx.Response, name: str, key: str = "") -> None:
    """Let a client leave, and wait until nobody reads the stream."""
    await response.aclose()
    session = gateway.keeper.sessions.find(key, name)
    assert session is not None
    await until(lambda: not session.n_readers)


def said(text: str) -> str:
    chunks = (json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: "))
    return "".join(chunk["content"] for chunk in chunks)


async def replay(gateway: Running, name: str, **more: Any) -> httpx.Response:
    params = {"conv_id": name, **more.pop("params", {})}
    return await gateway.client.get("/v1/stream", params=params, **more)


async def looked_up(gateway: Running, *names: str, **more: Any) -> list[dict[str, Any]]:
    answer = await gateway.post("/v1/streams/lookup", {"conversation_ids": names}, **more)
    assert answer.status_code == 200
    rows: list[dict[str, Any]] = answer.json()
    return rows


async def test_a_stream_goes_on_without_its_client_and_is_read_from_an_offset(
    stepped: Running,
) -> None:
    worker = stepped.workers[0]
    response = await opened(stepped, WORDS, of("c"))
    seen = await anext(response.aiter_bytes())
    await hung_up(stepped, response, "c")
    (row,) = await looked_up(stepped, "c")
    assert (row["is_done"], row["completed_at"]) == (False, 0)
    await worker.step(10)
    await stepped.idle()
    whole = (await replay(stepped, "c")).content
    assert whole.startswith(seen) and said(whole.decode()) == "a b c d"
    rest = await replay(stepped, "c", params={"from": len(seen)})
    assert rest.status_code == 200 and rest.headers["content-type"] == "text/event-stream"
    assert rest.content == whole[len(seen) :]
    (row,) = await looked_up(stepped, "c")
    assert row["is_done"] and row["total_bytes"] == len(whole)
    assert 0 < row["started_at"] <= row["completed_at"]


async def test_a_reader_follows_what_is_still_to_come(stepped: Running) -> None:
    worker = stepped.workers[0]
    response = await opened(stepped, WORDS, of("c"))
    reading = asyncio.create_task(replay(stepped, "c"))
    session = stepped.keeper.sessions.find("", "c")
    assert session is not None
    await until(lambda: session.n_readers == 2)
    await worker.step(10)
    own = await response.aread()
    assert (await reading).content == own and said(own.decode()) == "a b c d"


async def test_the_client_itself_sees_what_it_always_sees(gateway: Running) -> None:
    kept = await gateway.post("/v1/chat/completions", {"messages": [], **WORDS}, headers=of("c"))
    plain = await gateway.post("/v1/chat/completions", {"messages": [], **WORDS})
    assert kept.headers["x-llamapool-worker"] == plain.headers["x-llamapool-worker"]
    assert kept.text.count("\n\n") == plain.text.count("\n\n")
    assert kept.text.endswith("data: [DONE]\n\n")
    assert (await replay(gateway, "c")).content == kept.content


async def test_two_keys_have_streams_of_their_own(tmp_path: Path) -> None:
    async with running(tmp_path, **keys(tmp_path, we="", they="")) as gateway:
        await gateway.add_worker()
        for name in ("we", "they"):
            body = {"prompt": f"said by {name}", "stream": True}
            await gateway.post("/completion", body, headers=of("c", **as_(name)))
        for name in ("we", "they"):
            found = await replay(gateway, "c", headers=as_(name))
            assert said(found.text) == f"said by {name}"
        await gateway.client.delete("/v1/stream?conv_id=c", headers=as_("we"))
        assert (await replay(gateway, "c", headers=as_("we"))).status_code == 404
        assert (await replay(gateway, "c", headers=as_("they"))).status_code == 200
        assert await looked_up(gateway, "c", headers=as_("we")) == []
        assert (await replay(gateway, "c")).status_code == 401


async def test_an_end_by_order_frees_the_slot_and_ends_all_readers(stepped: Running) -> None:
    worker = stepped.workers[0]
    response = await opened(stepped, ENDLESS, of("c::m"))
    reading = asyncio.create_task(replay(stepped, "c::m"))
    session = stepped.keeper.sessions.find("", "c::m")
    assert session is not None
    await until(lambda: session.n_readers == 2)
    for _ in range(2):  # there may be none
        answer = await stepped.client.delete("/v1/stream", params={"conv_id": "c::m"})
        assert (answer.status_code, answer.content) == (204, b"")
    await worker.got(m.Cancel)
    await worker.step()
    await until(lambda: stepped.pool.health().slots_idle == 1)
    assert (await response.aread()) == (await reading).content
    assert (await replay(stepped, "c::m")).status_code == 404


async def test_one_that_waits_is_ended_before_its_first_byte(stepped: Running) -> None:
    response = await opened(stepped, ENDLESS, of("a"))
    asked = asyncio.create_task(stepped.post("/completion", WORDS, headers=of("b")))
    await until(lambda: stepped.pool.health().n_deferred == 1)
    await stepped.client.delete("/v1/stream?conv_id=b")
    answer = await asked
    assert (answer.status_code, answer.content) == (200, b"")
    assert stepped.pool.health().n_deferred == 0
    await response.aclose()


async def test_one_without_a_reader_counts_for_its_key(tmp_path: Path) -> None:
    async with running(tmp_path, **keys(tmp_path, we="concurrent = 1")) as gateway:
        worker = await gateway.add_worker(FakeOptions(n_slots=2, n_prefetch=0, free_running=False))
        response = await opened(gateway, ENDLESS, of("c", **as_("we")))
        await hung_up(gateway, response, "c", "we")
        asked = asyncio.create_task(gateway.post("/completion", WORDS, headers=as_("we")))
        await until(lambda: gateway.pool.health().n_deferred == 1)
        await gateway.client.delete("/v1/stream?conv_id=c", headers=as_("we"))
        await finished(worker, asked)
        assert said((await asked).text) == "a b c d"


async def finished(worker: FakeWorker, asked: asyncio.Future[httpx.Response]) -> None:
    while not asked.done():
        await worker.step()
        await asyncio.sleep(0)


@pytest.mark.slow
async def test_its_own_time_ends_it_without_a_reader(stepped: Running) -> None:
    headers = of("c", **{"X-Request-Timeout": "1"})
    response = await opened(stepped, ENDLESS, headers)
    await hung_up(stepped, response, "c")
    worker = stepped.workers[0]
    await worker.got(m.Cancel)
    with pytest.raises(httpx.RemoteProtocolError):  # it is broken for whoever reads it
        await replay(stepped, "c")


async def test_a_drain_ends_it_without_a_reader(stepped: Running) -> None:
    response = await opened(stepped, ENDLESS, of("c"))
    await hung_up(stepped, response, "c")
    stepped.keeper.sessions.drain()
    await stepped.workers[0].got(m.Cancel)
    with pytest.raises(httpx.RemoteProtocolError):  # or a part would pass for the whole
        await replay(stepped, "c")


async def test_what_fails_before_its_first_byte_is_not_kept(gateway: Running) -> None:
    await gateway.post("/completion", WORDS, headers=of("c"))
    answer = await gateway.post("/completion", {**WORDS, "prompt": 5.5}, headers=of("c"))
    assert answer.status_code == 400
    assert (await replay(gateway, "c")).status_code == 404


async def test_a_whole_answer_is_not_kept_and_ends_with_its_client(stepped: Running) -> None:
    worker = stepped.workers[0]
    asked = asyncio.create_task(stepped.post("/completion", {"prompt": "a"}, headers=of("c")))
    await worker.got(m.Generate)
    assert not len(stepped.keeper.sessions)
    asked.cancel()
    await worker.got(m.Cancel)


async def test_a_full_server_says_so_and_ended_streams_make_room(tmp_path: Path) -> None:
    limits = LimitsConfig(kept_streams=1)
    async with running(tmp_path, limits=limits, metrics=True) as gateway:
        await gateway.add_worker(STEPPED)
        response = await opened(gateway, ENDLESS, of("a"))
        refused = await gateway.post("/completion", WORDS, headers=of("b"))
        assert refused.status_code == 429 and "retry-after" in refused.headers
        assert "kept_streams" in refused.json()["error"]["message"]
        await hung_up(gateway, response, "a")
        await gateway.client.delete("/v1/stream?conv_id=a")
        asked = asyncio.create_task(gateway.post("/completion", WORDS, headers=of("b")))
        await finished(gateway.workers[0], asked)
        assert said((await asked).text) == "a b c d"
        page = (await gateway.client.get("/metrics")).text
        assert "\nllamapool_kept_streams 1\n" in page.replace(".0\n", "\n")
        n_bytes = re.search(r"^llamapool_kept_stream_bytes (\d+)", page, re.M)
        assert n_bytes and int(n_bytes[1]) == gateway.keeper.sessions.n_bytes > 0


async def test_none_is_kept_where_that_is_off(tmp_path: Path) -> None:
    async with running(tmp_path, limits=LimitsConfig(kept_streams=0)) as gateway:
        await gateway.add_worker(STEPPED)
        response = await opened(gateway, ENDLESS, of("c"))
        await response.aclose()
        await gateway.workers[0].got(m.Cancel)
        assert (await replay(gateway, "c")).status_code == 404


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("", 400, "Missing conversation id in path"),
        ("conv_id=", 400, "Missing conversation id in path"),
        ("conv_id=other&from=x", 404, "Stream not found or expired"),
        ("conv_id=c&from=x", 400, "Invalid 'from' offset"),
        (f"conv_id=c&from={2**70}", 400, "Invalid 'from' offset"),
        (f"conv_id=c&from={'9' * 257}", 400, "Field 'from': at most 256 characters, but got 257"),
        (f"conv_id={'c' * 4097}", 400, "Field 'conv_id': at most 4096 characters, but got 4097"),
        ("conv_id=c&from=-1", 200, ""),
        ("conv_id=c&from=99999999", 200, ""),
    ],
)
async def test_hostile_queries_are_answered_as_by_llama_server(
    gateway: Running, query: str, status: int, message: str
) -> None:
    await gateway.post("/completion", WORDS, headers=of("c"))
    answer = await gateway.client.get(f"/v1/stream?{query}")
    assert answer.status_code == status
    assert (answer.json()["error"]["message"] if answer.content else "") == message


async def test_a_head_names_the_type_and_waits_for_nothing(stepped: Running) -> None:
    response = await opened(stepped, ENDLESS, of("c"))
    answer = await stepped.client.head("/v1/stream?conv_id=c")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
    await response.aclose()


async def test_ids_are_any_bytes(gateway: Running) -> None:
    names = ["ü x", "a/b&c=d+e%20", "::", "x" * 1024]
    for name in names:
        headers = {b"X-Conversation-Id": name.encode()}
        await gateway.client.post("/completion", json=WORDS, headers=headers)
        assert said((await replay(gateway, name)).text) == "a b c d"
    assert [row["conversation_id"] for row in await looked_up(gateway, *names)] == names
    refused = await gateway.post("/completion", WORDS, headers=of("x" * 1025))
    assert refused.status_code == 400


@pytest.mark.parametrize("body", ["{}", "[]", "5", "null", '{"conversation_ids": 5}'])
async def test_a_lookup_that_names_nothing_finds_nothing(gateway: Running, body: str) -> None:
    answer = await gateway.client.post("/v1/streams/lookup", content=body)
    assert (answer.status_code, answer.json()) == (200, [])


async def test_a_lookup_takes_strings_only_and_bounds_them(gateway: Running) -> None:
    await gateway.post("/completion", WORDS, headers=of("c"))
    body = {"conversation_ids": [1, "", None, ["c"], "c"]}
    assert len((await gateway.post("/v1/streams/lookup", body)).json()) == 1
    for names in (["x" * 1025], ["x"] * 8193):
        refused = await gateway.post("/v1/streams/lookup", {"conversation_ids": names})
        assert refused.status_code == 400
    broken = await gateway.client.post("/v1/streams/lookup", content="x")
    error = broken.json()["error"]
    assert broken.status_code == 400 and set(error) == {"message", "type"}
    assert error["message"].startswith("invalid body: ")


async def test_it_waits_for_its_model_without_its_client(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        supervisor.held["a"] = asyncio.Event()
        body = {**WORDS, "model": "a"}
        leaving = asyncio.create_task(gateway.post("/completion", body, headers=of("c")))
        await until(lambda: bool(supervisor.orders))
        answer = await replay(gateway, "c")
        error = answer.json()["error"]
        assert (answer.status_code, error["message"]) == (
            503,
            "Stream owner model is loading, retry later",
        )
        leaving.cancel()
        session = gateway.keeper.sessions.find("", "c")
        assert session is not None
        await until(lambda: not session.n_readers)
        supervisor.held["a"].set()
        await until(lambda: session.is_over)
        assert said((await replay(gateway, "c")).text) == "a b c d"


async def test_an_end_while_its_model_loads_is_told_in_llama_servers_words(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        supervisor.held["a"] = asyncio.Event()
        body = {**WORDS, "model": "a"}
        asked = asyncio.create_task(gateway.post("/completion", body, headers=of("c")))
        await until(lambda: bool(supervisor.orders))
        await gateway.client.delete("/v1/stream?conv_id=c")
        answer = await asked
        assert answer.status_code == 400
        told = "request cancelled by a stop while the model was loading"
        assert answer.json()["error"]["message"] == told
        supervisor.held["a"].set()


async def test_another_gateway_says_where_it_may_be_and_ends_it_there(tmp_path: Path) -> None:
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder in folders:
        folder.mkdir()
    shared = {"siblings": str(tmp_path / "siblings")}
    async with (
        running(folders[0], **shared) as one,
        running(folders[1], **shared) as other,
        contextlib.AsyncExitStack() as ends,
    ):
        for gateway in (one, other):
            await gateway.siblings.open()
            ends.callback(gateway.siblings.close)
        await one.add_worker(STEPPED)
        response = await opened(one, ENDLESS, of("c"))
        await hung_up(one, response, "c")
        answer = await replay(other, "c")
        assert answer.status_code == 404
        assert "only the one that began it keeps it" in answer.json()["error"]["message"]
        ended = await other.client.delete("/v1/stream?conv_id=c")
        assert ended.status_code == 204
        await one.workers[0].got(m.Cancel)
        assert (await replay(one, "c")).status_code == 404
