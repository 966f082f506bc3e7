"""Requests that wait: deadlines, predictions, priorities, and the place in the queue."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.http import waiting
from protocol.wire.side_tasks import Embed
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker
from tests.gateway.inprocess import Running, running, until
from tests.vendors import openai

PROMPT = {"prompt": "a b c", "n_predict": 2}
SLOW = FakeOptions(free_running=False, n_slots=1, n_prefetch=0)


async def ask(
    gateway: Running, headers: dict[str, str] | None = None, **body: Any
) -> httpx.Response:
    return await gateway.post("/v1/completions", {**PROMPT, **body}, headers=headers or {})


async def occupied(gateway: Running) -> tuple[FakeWorker, asyncio.Future[httpx.Response]]:
    """Start a worker with one slot, and a request that has it."""
    worker = await gateway.add_worker(SLOW)
    first = asyncio.ensure_future(ask(gateway))
    await until(lambda: bool(worker.engine.waiting))
    return worker, first


@pytest.mark.parametrize(
    ("headers", "body", "name"),
    [
        ({"x-request-timeout": "soon"}, {}, "x-request-timeout"),
        ({"x-request-timeout": "0"}, {}, "x-request-timeout"),
        ({"x-request-timeout": "nan"}, {}, "x-request-timeout"),
        ({"x-request-timeout": "1e9"}, {}, "x-request-timeout"),
        ({"x-slo-ttft-ms": "-1"}, {}, "x-slo-ttft-ms"),
        ({"x-slo-ttft-ms": "inf"}, {}, "x-slo-ttft-ms"),
        ({"x-slo-ttft-ms": "9" * 300}, {}, "x-slo-ttft-ms"),
        ({"x-priority": "high"}, {}, "x-priority"),
        ({}, {"priority": "1"}, "priority"),
        ({}, {"priority": 2**40}, "priority"),
        ({}, {"priority": True}, "priority"),
        ({}, {"priority": 1.5}, "priority"),
    ],
)
async def test_a_wrong_value_is_a_400_that_names_it(
    gateway: Running, headers: dict[str, str], body: dict[str, Any], name: str
) -> None:
    refused = await ask(gateway, headers, **body)
    assert refused.status_code == 400, refused.text
    assert name in refused.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_waits_beyond_its_time_gets_a_429_with_the_time_to_come_back(
    tmp_path: Path, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.http.origin.refusal_pause.PAUSE_S", 0.01)
    async with running(tmp_path) as gateway:
        _, first = await occupied(gateway)
        for headers in ({"x-slo-ttft-ms": "50"}, {"x-request-timeout": "0.05"}):
            refused = await ask(gateway, headers, stream=stream)
            assert refused.status_code == 429, refused.text
            assert int(refused.headers["retry-after"]) >= 1
            assert int(refused.headers["x-llamapool-queue-position"]) >= 1
            assert float(refused.headers["x-llamapool-queue-wait-s"]) > 0
            assert next(iter(headers)) in refused.json()["error"]["message"]
        first.cancel()


@pytest.mark.parametrize("body", [{"n": 2}, {"prompt": ["a", "b"]}])
async def test_each_answer_of_a_request_must_begin_in_time(
    tmp_path: Path, body: dict[str, Any]
) -> None:
    async with running(tmp_path) as gateway:
        worker = await gateway.add_worker(SLOW)
        asked = asyncio.ensure_future(ask(gateway, {"x-slo-ttft-ms": "200"}, **body))
        await until(lambda: bool(worker.engine.waiting))  # one of the two has the slot
        refused = await asked
        assert refused.status_code == 429, refused.text
        assert "the limit of x-slo-ttft-ms" in refused.json()["error"]["message"]
        await until(lambda: bool(worker.engine.cancelled))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_ends_what_runs(tmp_path: Path, stream: bool) -> None:
    async with running(tmp_path) as gateway:
        worker = await gateway.add_worker(SLOW)
        stepping = asyncio.ensure_future(_once(worker))
        headers = {"x-request-timeout": "0.3"}
        if stream:
            body, lines = {**PROMPT, "stream": True}, []
            reading = gateway.client.stream("POST", "/completion", json=body, headers=headers)
            with pytest.raises(httpx.RemoteProtocolError):  # its end is missing
                async with reading as answer:
                    assert answer.status_code == 200
                    async for line in answer.aiter_lines():
                        lines.append(line)  # noqa: PERF401 - they must stay when it raises
            assert "the limit of x-request-timeout" in str(lines)
            assert '"code":504' in str(lines)
        else:
            answer = await ask(gateway, headers)
            assert answer.status_code == 504
            assert answer.headers["x-should-retry"] == "false"
            assert answer.json()["error"]["type"] == "timeout_error"
        await until(lambda: bool(worker.engine.cancelled))
        await stepping


async def _answer(worker: FakeWorker, first: asyncio.Future[httpx.Response]) -> None:
    """Finish what the worker holds, and nothing of what comes next."""
    job = worker.engine.waiting[0]
    while job.finish is None:
        await worker.step()
    await first


async def _once(worker: FakeWorker) -> None:
    await until(lambda: bool(worker.engine.waiting))
    await worker.step()


async def test_what_cannot_be_met_is_refused_at_once_and_never_before_it_was_measured(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as gateway:
        worker, first = await occupied(gateway)
        queued = [asyncio.ensure_future(ask(gateway)) for _ in range(3)]
        await until(lambda: gateway.pool.status.queue_depths() == {"fake": 3})
        early = asyncio.ensure_future(ask(gateway, {"x-slo-ttft-ms": "30000"}))
        await until(lambda: gateway.pool.status.queue_depths() == {"fake": 4})
        early.cancel()
        await _answer(worker, first)
        await until(lambda: bool(worker.engine.waiting))
        refused = await ask(gateway, {"x-slo-ttft-ms": "1"})
        assert refused.status_code == 429
        assert "The first token is expected after about" in refused.json()["error"]["message"]
        for one in queued:
            one.cancel()


@pytest.mark.slow
async def test_a_waiting_stream_is_told_its_place_and_clients_do_not_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "NOTICE_S", 0.02)
    async with running(tmp_path) as gateway:
        worker, first = await occupied(gateway)
        client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="-", max_retries=0)
        body = {**PROMPT, "stream": True}
        lines: list[str] = []
        async with (
            client,
            gateway.client.stream("POST", "/v1/completions", json=body) as response,
        ):
            sdk = await client.completions.create(
                model="fake", prompt="x y", max_tokens=2, stream=True
            )
            assert response.status_code == 200
            rows = response.aiter_lines()
            lines = [await anext(rows) for _ in range(3)]
            assert lines[0] == ": queue position=1"
            while not first.done():
                await worker.step()
                await asyncio.sleep(0.002)
            stepping = asyncio.ensure_future(_step(worker))
            told = [row async for row in rows if row]
            texts = [choice.choices[0].text async for choice in sdk]
            stepping.cancel()
        assert told[-1] == "data: [DONE]"
        started = next(i for i, row in enumerate(told) if row.startswith("data:"))
        assert all(row.startswith("data:") for row in told[started:])
        assert "".join(texts) == "x y"


async def _step(worker: FakeWorker) -> None:
    while True:
        await worker.step()
        await asyncio.sleep(0.002)


async def test_a_request_with_a_deadline_keeps_its_status_until_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "NOTICE_S", 0.02)
    async with running(tmp_path) as gateway:
        _, first = await occupied(gateway)
        refused = await ask(gateway, {"x-request-timeout": "0.2"}, stream=True)
        assert refused.status_code == 429
        first.cancel()


async def test_priorities_decide_between_the_requests_of_one_client(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        worker, first = await occupied(gateway)
        asked: list[asyncio.Future[httpx.Response]] = []
        for text, headers, body in (
            ("later", {}, {}),
            ("last", {}, {"priority": 5}),
            ("soon", {"x-priority": "-1"}, {}),
        ):
            depth = len(asked) + 1
            asked.append(asyncio.ensure_future(ask(gateway, headers, **body, prompt=text)))
            await until(lambda depth=depth: gateway.pool.status.queue_depths() == {"fake": depth})  # type: ignore[misc]
        stepping = asyncio.ensure_future(_step(worker))
        for one in (first, *asked):
            assert (await one).status_code == 200
        stepping.cancel()
        prompts = [one.prompt for one in worker.received if hasattr(one, "prompt")]
        assert prompts[1:] == ["soon", "later", "last"]


@contextlib.asynccontextmanager
async def embedding_no_more(
    folder: Path, pooling: str
) -> AsyncIterator[tuple[Running, FakeWorker, Callable[[int], None]]]:
    """A worker that answers no embeddings; the function gives it that many of them."""
    async with running(folder) as gateway:
        worker = await gateway.add_worker(FakeOptions(pooling=pooling))
        worker.go_silent()
        held = list[asyncio.Future[httpx.Response]]()

        def hold(n: int) -> None:
            one = {"input": "x"} if pooling == "mean" else {"query": "q", "documents": ["x"]}
            held.extend(
                asyncio.ensure_future(gateway.post(VECTORS[pooling], one)) for _ in range(n)
            )

        yield gateway, worker, hold
        for one in held:
            one.cancel()


VECTORS = {"mean": "/v1/embeddings", "rank": "/v1/rerank"}
TEXTS = {"input": "a", "query": "a", "documents": ["b"]}


@pytest.mark.parametrize("pooling", VECTORS)
async def test_embeddings_and_ranks_keep_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pooling: str
) -> None:
    monkeypatch.setattr("gateway.http.origin.refusal_pause.PAUSE_S", 0.01)
    async with embedding_no_more(tmp_path, pooling) as (gateway, worker, hold):
        headers = {"x-request-timeout": "0.1"}
        late = await gateway.post(VECTORS[pooling], TEXTS, headers=headers)
        assert late.status_code == 504, late.text
        assert late.json()["error"]["type"] == "timeout_error"
        hold(16)
        await until(lambda: gateway.pool.dispatcher.n_tasks == 16)
        for headers in ({"x-slo-ttft-ms": "50"}, {"x-request-timeout": "0.05"}):
            refused = await gateway.post(VECTORS[pooling], TEXTS, headers=headers)
            assert refused.status_code == 429, refused.text
            assert next(iter(headers)) in refused.json()["error"]["message"]
        assert not worker.engine.waiting


@pytest.mark.parametrize("pooling", VECTORS)
async def test_embeddings_and_ranks_have_priorities(tmp_path: Path, pooling: str) -> None:
    async with embedding_no_more(tmp_path, pooling) as (gateway, _, hold):
        hold(16)
        await until(lambda: gateway.pool.dispatcher.n_tasks == 16)
        asked = [
            asyncio.ensure_future(gateway.post(VECTORS[pooling], {**TEXTS, "priority": number}))
            for number in (5, -1)
        ]
        await until(lambda: gateway.pool.status.queue_depths() == {"fake": 2})
        places = gateway.pool.dispatcher.book.waiting()
        assert sorted(task.spec.priority for task in places) == [-1, 5]
        for one in asked:
            one.cancel()
        refused = await gateway.post(VECTORS[pooling], {**TEXTS, "priority": "high"})
        assert refused.status_code == 400


async def test_embeddings_need_no_slot_to_be_in_time(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        options = FakeOptions(free_running=False, n_slots=1, n_prefetch=0, pooling="mean")
        worker = await gateway.add_worker(options)
        first = asyncio.ensure_future(ask(gateway))
        await until(lambda: bool(worker.engine.waiting))
        queued = [asyncio.ensure_future(ask(gateway)) for _ in range(3)]
        await until(lambda: gateway.pool.status.queue_depths() == {"fake": 3})
        await _answer(worker, first)  # the model is measured now
        await until(lambda: bool(worker.engine.waiting))
        headers = {"x-slo-ttft-ms": "20"}
        asked = asyncio.ensure_future(gateway.post("/v1/embeddings", TEXTS, headers=headers))
        await until(lambda: asked.done() or any(isinstance(x, Embed) for x in worker.received))
        assert not asked.done()
        for one in (*queued, asked):
            one.cancel()
