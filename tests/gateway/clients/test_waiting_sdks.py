"""Real clients whose stream waits in the queue: the comments that tell its place are no events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.http import event_stream, waiting
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker
from tests.gateway.inprocess import Running, running, until
from tests.vendors import anthropic, openai

SLOW = FakeOptions(free_running=False, n_slots=1, n_prefetch=0)
CHAT: Any = [{"role": "user", "content": "x y"}]

Read = Callable[[str], Awaitable[str]]


async def of_chat(url: str) -> str:
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="-", max_retries=0, _strict_response_validation=True
    ) as sdk:
        stream = await sdk.chat.completions.create(model="fake", messages=CHAT, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])


async def of_completion(url: str) -> str:
    # Not strict: its types know no `finish_reason: null`, which OpenAI's own streams have.
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as sdk:
        stream = await sdk.completions.create(model="fake", prompt="x y", stream=True)
        return "".join([choice.choices[0].text async for choice in stream])


async def of_response(url: str) -> str:
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="-", max_retries=0, _strict_response_validation=True
    ) as sdk:
        stream = await sdk.responses.create(model="fake", input="x y", stream=True)
        return "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])


async def of_message(url: str) -> str:
    async with (
        anthropic.AsyncAnthropic(
            base_url=url, api_key="-", max_retries=0, _strict_response_validation=True
        ) as sdk,
        sdk.messages.stream(model="fake", max_tokens=9, messages=CHAT) as stream,
    ):
        return await stream.get_final_text()


@pytest.fixture
async def told(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[bytes]]:
    """The comments that were written to all streams."""
    comments: list[bytes] = []
    write = event_stream.EventStream.comment

    async def comment(self: event_stream.EventStream, data: bytes) -> None:
        comments.append(data)
        await write(self, data)

    monkeypatch.setattr(event_stream.EventStream, "comment", comment)
    monkeypatch.setattr(waiting, "NOTICE_S", 0.02)
    yield comments


async def stepping(worker: FakeWorker) -> None:
    while True:
        await worker.step()
        await asyncio.sleep(0.002)


async def occupied(gateway: Running) -> tuple[FakeWorker, asyncio.Future[Any]]:
    """Start a worker with one slot, and a request that has it."""
    worker = await gateway.add_worker(SLOW)
    first = asyncio.ensure_future(gateway.post("/completion", {"prompt": "a b", "n_predict": 2}))
    await until(lambda: bool(worker.engine.waiting))
    return worker, first


@pytest.mark.parametrize("read", [of_chat, of_completion, of_response, of_message])
async def test_a_client_that_waits_reads_its_answer_only(
    tmp_path: Path, told: list[bytes], read: Read
) -> None:
    async with running(tmp_path) as gateway:
        worker, first = await occupied(gateway)
        reading = asyncio.ensure_future(read(gateway.url))
        await until(lambda: len(told) >= 3)
        assert told[0].startswith(b": queue position=1")
        work = asyncio.ensure_future(stepping(worker))
        try:
            assert await reading == "x y"
        finally:
            work.cancel()
        await first


@pytest.mark.parametrize("read", [of_chat, of_message])
async def test_a_failure_after_a_wait_is_an_error_of_the_client(
    tmp_path: Path, told: list[bytes], read: Read
) -> None:
    async with running(tmp_path) as gateway:
        _, first = await occupied(gateway)
        reading = asyncio.ensure_future(read(gateway.url))
        await until(lambda: len(told) >= 2)
        gateway.pool.transport.abandon("fake")  # as when its model is unloaded
        with pytest.raises((openai.APIError, anthropic.APIError)):
            await reading
        first.cancel()
