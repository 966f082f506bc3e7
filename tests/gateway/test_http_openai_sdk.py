"""The official client against us: sync, async, streaming, errors."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from protocol import messages as m
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import Running, running

MESSAGES: Any = [{"role": "user", "content": "one two three"}]


@pytest.fixture
async def sdk(gateway: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    """The asynchronous client, strict about what it gets."""
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", _strict_response_validation=True
    ) as client:
        yield client


async def test_chat_in_one_piece(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model="any", messages=MESSAGES, n=2)
    assert [choice.message.content for choice in answer.choices] == ["one two three"] * 2
    assert answer.usage is not None and answer.usage.total_tokens == 9
    assert answer.choices[0].finish_reason == "stop"


async def test_chat_stream_with_usage(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model="any", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "one two three"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 3


async def test_text_completion_and_echo(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.completions.create(model="any", prompt=["a", "b"], echo=True)
    assert [choice.text for choice in answer.choices] == ["aa", "bb"]


async def test_models(sdk: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in sdk.models.list()] == ["fake"]


async def test_the_synchronous_client(gateway: Running) -> None:
    def ask() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
            whole = client.chat.completions.create(model="any", messages=MESSAGES)
            stream = client.chat.completions.create(model="any", messages=MESSAGES, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            return whole.choices[0].message.content, text

    assert await asyncio.to_thread(ask) == ("one two three", "one two three")


async def test_a_bad_field_is_a_bad_request_error(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat.completions.create(model="any", messages=MESSAGES, temperature="hot")
    assert caught.value.param == "temperature"
    assert caught.value.request_id


async def test_unsupported_is_not_retried(sdk: openai.AsyncOpenAI, gateway: Running) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        await sdk.embeddings.create(model="any", input="a")
    assert caught.value.status_code == 501
    assert "Start it with `--embeddings`" in caught.value.message
    assert gateway.metrics.http_statuses["/v1/embeddings", "5xx"] == 1


async def test_a_lost_worker_raises_in_the_stream(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        worker = await gateway.add_worker(FakeOptions(free_running=False))
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
            asking = asyncio.create_task(
                client.chat.completions.create(model="any", messages=MESSAGES, stream=True)
            )
            await worker.got(m.Generate)
            await worker.step(2)
            stream = await asking
            await worker.die()
            with pytest.raises(openai.APIError):
                async for _ in stream:
                    pass
