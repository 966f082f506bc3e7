"""A stream tells which worker it comes from, also when its head could not, or another goes on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.http import waiting
from gateway.pool.watch.activity import activity
from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker
from tests.gateway.inprocess import Running, running, until
from tests.vendors import anthropic, openai

MESSAGES: Any = [{"role": "user", "content": "one two three four"}]
CHAT = {"messages": MESSAGES, "stream": True}
NATIVE = {"prompt": "one two three four", "stream": True}
SLOW = FakeOptions(name="a", free_running=False, n_slots=3, n_prefetch=0)

Ask = Callable[[Running], Awaitable[str]]


@asynccontextmanager
async def moving(folder: Path, *asks: Ask) -> AsyncIterator[list[asyncio.Task[str]]]:
    """Let worker `a` begin with these requests and die, and `b` go on with them."""
    async with running(folder) as gateway:
        worker = await gateway.add_worker(SLOW)
        asked = [asyncio.ensure_future(ask(gateway)) for ask in asks]
        await worker.got(m.Generate, len(asks))
        await worker.step(2)
        await until(lambda: phases(gateway) == "w" * len(asks))
        await gateway.add_worker(FakeOptions(name="b", n_slots=3))
        await worker.die()
        yield asked


def phases(gateway: Running) -> str:
    """Return what the slots of worker `a` do."""
    return "".join(phase for _, phase, _ in activity(gateway.pool.dispatcher).slots.get("a", ()))


async def raw(gateway: Running, path: str, body: dict[str, Any]) -> str:
    answer = await gateway.post(path, body)
    assert answer.headers["x-llamapool-worker"] == "a"
    return answer.text


async def by_openai(gateway: Running) -> str:
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="-", _strict_response_validation=True
    ) as sdk:
        stream = await sdk.chat.completions.create(model="any", messages=MESSAGES, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])


async def by_anthropic(gateway: Running) -> str:
    async with (
        anthropic.AsyncAnthropic(
            base_url=gateway.url, api_key="-", _strict_response_validation=True
        ) as sdk,
        sdk.messages.stream(model="any", max_tokens=9, messages=MESSAGES) as stream,
    ):
        return await stream.get_final_text()


def notices(text: str) -> list[tuple[str, str, str]]:
    """Return name, route and milliseconds in the queue of each comment."""
    found = re.findall(r"^: worker queue_ms=(\d+) cached=\d+ route=(\S*) name=(.*)$", text, re.M)
    return [(name, route, queue_ms) for queue_ms, route, name in found]


async def test_the_worker_that_goes_on_is_named_in_the_stream(tmp_path: Path) -> None:
    async with moving(
        tmp_path,
        lambda gateway: raw(gateway, "/v1/chat/completions", CHAT),
        lambda gateway: raw(gateway, "/completion", NATIVE),
        lambda gateway: raw(gateway, "/v1/chat/completions", {**CHAT, "sse_ping_interval": -1}),
    ) as asked:
        chat, native, quiet = await asyncio.gather(*asked)
    assert [(name, route) for name, route, _ in notices(chat)] == [("b", "load")]
    assert chat.rstrip().endswith("data: [DONE]")
    assert not notices(native), "old clients of this API take each chunk for an event"
    assert not notices(quiet)


@pytest.mark.slow
async def test_the_vendors_clients_do_not_notice(tmp_path: Path) -> None:
    async with moving(tmp_path, by_openai, by_anthropic) as asked:
        assert await asyncio.gather(*asked) == ["one two three four"] * 2


async def test_a_stream_that_has_waited_names_its_worker_and_its_time_in_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "NOTICE_S", 0.02)
    async with running(tmp_path) as gateway:
        worker = await gateway.add_worker(FakeOptions(free_running=False, n_slots=1, n_prefetch=0))
        first = asyncio.ensure_future(gateway.post("/completion", NATIVE))
        await worker.got(m.Generate)
        async with gateway.client.stream("POST", "/v1/chat/completions", json=CHAT) as answer:
            assert "x-llamapool-worker" not in answer.headers
            stepping = asyncio.ensure_future(steps(worker))
            text = "\n".join([line async for line in answer.aiter_lines()])
            stepping.cancel()
        assert (await first).headers["x-llamapool-queue-ms"] == "0"
    assert text.startswith(": queue position=1")
    ((name, route, queue_ms),) = notices(text)
    assert (name, route) == ("w0", "load")
    assert int(queue_ms) >= 20
    assert text.index(": worker") < text.index("data: ")


async def steps(worker: FakeWorker) -> None:
    while True:
        await worker.step()
        await asyncio.sleep(0.002)


async def test_a_choice_that_goes_to_another_worker_is_named_too(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        for name in "ab":
            await gateway.add_worker(FakeOptions(name=name, n_slots=1, n_prefetch=0))
        answer = await gateway.post("/v1/chat/completions", {**CHAT, "n": 2})
        named = [answer.headers["x-llamapool-worker"], *(name for name, *_ in notices(answer.text))]
        assert set(named[-1].split(", ")) == {"a", "b"}


async def test_a_whole_answer_tells_it_in_the_head(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        await gateway.add_worker()
        answer = await gateway.post("/v1/chat/completions", {**CHAT, "stream": False})
        assert int(answer.headers["x-llamapool-queue-ms"]) >= 0
