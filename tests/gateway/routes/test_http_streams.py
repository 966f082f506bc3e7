"""How answers end before their time: client gone, worker gone, queue full, silence."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from protocol.errors import ErrorCode
from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import failed
from tests.gateway.inprocess import Running, running, until

SLOW = FakeOptions(n_slots=1, n_prefetch=0, free_running=False)
LONG = {"prompt": "a b c d", "ignore_eos": True}


@pytest.fixture
async def stepped(tmp_path: Path) -> AsyncIterator[Running]:
    """A gateway whose one worker has one slot and moves only by `step`."""
    async with running(tmp_path, ping_interval_s=0.1, queue_size=1) as one:
        await one.add_worker(SLOW)
        yield one


async def _started(gateway: Running, body: dict[str, Any]) -> httpx.Response:
    """Open a stream and run the worker until its headers are here."""
    request = gateway.client.build_request("POST", "/completion", json={**body, "stream": True})
    sending = asyncio.create_task(gateway.client.send(request, stream=True))
    worker = gateway.workers[0]
    await worker.got(m.Generate)
    await worker.step(2)
    return await sending


async def test_leaving_a_stream_frees_the_slot(stepped: Running) -> None:
    response = await _started(stepped, LONG)
    await response.aclose()
    worker = stepped.workers[0]
    await worker.got(m.Cancel)
    await worker.step()
    await until(lambda: stepped.pool.health().slots_idle == 1)


async def test_leaving_without_a_stream_frees_the_slot(stepped: Running) -> None:
    waiting = asyncio.create_task(stepped.post("/v1/chat/completions", {"messages": []}))
    other = asyncio.create_task(stepped.post("/completion", LONG))
    worker = stepped.workers[0]
    await worker.got(m.Generate)
    waiting.cancel()
    other.cancel()
    await worker.got(m.Cancel)
    await worker.step()
    await until(lambda: stepped.pool.health().slots_idle == 1)


async def test_leaving_while_queued_leaves_the_queue(stepped: Running) -> None:
    running_ = asyncio.create_task(stepped.post("/completion", LONG))
    await stepped.workers[0].got(m.Generate)
    queued = asyncio.create_task(stepped.post("/completion", LONG))
    await until(lambda: stepped.pool.health().n_deferred == 1)
    queued.cancel()
    await until(lambda: stepped.pool.health().n_deferred == 0)
    running_.cancel()


async def test_a_lost_worker_is_an_event_and_a_broken_body(tmp_path: Path) -> None:
    async with running(tmp_path, queue_timeout_s=0.2) as gateway:
        await gateway.add_worker(SLOW)
        response = await _started(gateway, LONG)
        await gateway.workers[0].die()
        text = ""
        with pytest.raises(httpx.RemoteProtocolError):
            async for part in response.aiter_text():
                text += part
    last = json.loads(text.strip().split("\n")[-1].removeprefix("data: "))
    assert last["error"]["code"] == 503
    assert last["error"]["type"] == "unavailable_error"
    assert "[DONE]" not in text


async def test_an_error_before_the_first_token_is_a_plain_status(stepped: Running) -> None:
    worker = stepped.workers[0]
    worker.engine.fail_next = m.Failed(
        code=ErrorCode.CONTEXT_EXCEEDED,
        message="request (9 tokens) exceeds the available context size (4 tokens)",
        detail={"n_prompt_tokens": 9, "n_ctx": 4},
    )
    sending = asyncio.create_task(stepped.post("/completion", {**LONG, "stream": True}))
    await worker.got(m.Generate)
    await worker.step()
    response = await sending
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (9, 4)


async def test_an_internal_failure_is_not_to_be_retried(stepped: Running) -> None:
    worker = stepped.workers[0]
    worker.engine.fail_next = failed(ErrorCode.INTERNAL, "decode failed")
    sending = asyncio.create_task(stepped.post("/completion", LONG))
    await worker.got(m.Generate)
    await worker.step()
    response = await sending
    assert response.status_code == 500
    assert response.headers["x-should-retry"] == "false"


async def test_pings_flow_from_acceptance(stepped: Running) -> None:
    body = {**LONG, "stream": True}
    running_ = asyncio.create_task(stepped.post("/completion", LONG))
    await stepped.workers[0].got(m.Generate)
    async with stepped.client.stream("POST", "/completion", json=body) as response:
        assert response.status_code == 200
        first = await anext(response.aiter_text())
    assert first.startswith(":\n\n")
    running_.cancel()


async def test_the_client_may_switch_pings_off(stepped: Running) -> None:
    sending = asyncio.create_task(
        stepped.post("/completion", {"prompt": "a", "stream": True, "sse_ping_interval": -1})
    )
    await stepped.workers[0].got(m.Generate)
    silence = asyncio.wait({sending}, timeout=0.3)
    assert not (await silence)[0]
    await stepped.workers[0].step(3)
    assert ":\n\n" not in (await sending).text.replace("data:", "")


async def test_a_full_queue_says_when_to_come_back(stepped: Running) -> None:
    running_ = asyncio.create_task(stepped.post("/completion", LONG))
    await stepped.workers[0].got(m.Generate)
    queued = asyncio.create_task(stepped.post("/completion", LONG))
    await until(lambda: stepped.pool.health().n_deferred == 1)
    response = await stepped.post("/completion", LONG)
    assert response.status_code == 429
    assert response.json()["error"]["type"] == "rate_limit_error"
    assert int(response.headers["retry-after"]) >= 1
    health = await stepped.client.get("/health?fail_on_no_slot")
    assert (health.status_code, health.json()["status"]) == (503, "no slot available")
    assert (await stepped.client.get("/health")).status_code == 200
    assert (await stepped.client.get("/slots?fail_on_no_slot=1")).status_code == 503
    running_.cancel()
    queued.cancel()


async def test_everything_says_loading_until_a_model_is_ready(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        worker = await gateway.add_worker(FakeOptions(ready=False))
        await until(lambda: gateway.pool.health().status == "loading model")
        for path in ("/v1/models", "/props", "/slots"):
            response = await gateway.client.get(path)
            assert response.status_code == 503
            assert response.text == (
                '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
            )
            assert "retry-after" in response.headers
        assert (await gateway.post("/completion", LONG)).status_code == 503
        health = await gateway.client.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "loading model"
        assert health.json()["error"]["message"] == "Loading model"
        assert (await gateway.client.get("/readyz")).status_code == 503
        assert (await gateway.client.get("/livez")).status_code == 200
        await worker.ready()
        await until(lambda: gateway.pool.health().status == "ok")
        assert (await gateway.client.get("/readyz")).status_code == 200


async def test_a_draining_gateway_refuses_new_work(stepped: Running) -> None:
    response = await _started(stepped, {"prompt": "a b"})
    stepped.pool.dispatcher.drain()
    refused = await stepped.post("/completion", LONG)
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    await stepped.workers[0].step(3)
    assert '"stop":true' in (await response.aread()).decode()
    await stepped.idle()


async def test_closing_the_pool_ends_streams_with_an_event(stepped: Running) -> None:
    response = await _started(stepped, LONG)
    await stepped.pool.close()
    with pytest.raises(httpx.RemoteProtocolError):
        await response.aread()


async def test_metrics_and_slots_can_be_off(tmp_path: Path) -> None:
    async with running(tmp_path, slots=False) as gateway:
        await gateway.add_worker()
        metrics = await gateway.client.get("/metrics")
        slots = await gateway.client.get("/slots")
        assert metrics.status_code == slots.status_code == 501
        assert metrics.json()["error"]["message"] == (
            "This server does not support metrics endpoint. Start it with `--metrics`"
        )
        assert slots.json()["error"]["message"] == (
            "This server does not support slots endpoint. Start it with `--slots`"
        )


async def test_two_models_are_told_apart(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        await gateway.add_worker(FakeOptions(name="a-1", model="a", n_slots=1))
        await gateway.add_worker(FakeOptions(name="b-1", model="b", n_slots=3))
        nameless = await gateway.post("/completion", {"prompt": "x"})
        assert nameless.status_code == 400
        assert nameless.json()["error"]["message"] == "model name is missing from the request"
        unknown = await gateway.post("/completion", {"prompt": "x", "model": "c"})
        assert unknown.json()["error"]["message"] == "model 'c' not found"
        named = await gateway.post("/completion", {"prompt": "x", "model": "b"})
        assert named.json()["model"] == "b"
        assert (await gateway.client.get("/props")).json()["role"] == "router"
        props = (await gateway.client.get("/props?model=b")).json()
        assert (props["model_alias"], props["total_slots"]) == ("b", 3)
        slots = (await gateway.client.get("/slots")).json()
        assert [slot["id"] for slot in slots] == [0, 1, 2, 3]
        assert len((await gateway.client.get("/slots?model=")).json()) == 4
        assert len((await gateway.client.get("/slots?model=b")).json()) == 3
        assert (await gateway.client.get("/slots?model=c")).status_code == 400
