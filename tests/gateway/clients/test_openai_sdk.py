"""The official client against us: sync, async, streaming, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.settings import gateway_config
from protocol.config.config import LogConfig, PoolConfig
from protocol.config.options import table as options
from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import Running, running
from tests.vendors import openai

MESSAGES: Any = [{"role": "user", "content": "one two three"}]


@pytest.fixture
async def sdk(gateway: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    """The asynchronous client, strict about what it gets."""
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture
async def lenient(gateway: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    """The client as it is: OpenAI's own nulls in text completions are not in its types."""
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
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


@pytest.mark.parametrize("max_tokens", [1, 2])
async def test_a_prompt_is_judged_as_evaluation_harnesses_ask(
    lenient: openai.AsyncOpenAI, max_tokens: int
) -> None:
    options: Any = {"prompt": "one two", "echo": True, "logprobs": 1, "max_tokens": max_tokens}
    whole = (await lenient.completions.create(model="any", **options)).choices[0]
    assert whole.text == "one two" + "one two"[: 3 if max_tokens == 1 else 7]
    assert whole.logprobs is not None and whole.logprobs.tokens == ["one", " two"]
    assert whole.logprobs.token_logprobs == [None, -0.5]
    assert whole.logprobs.top_logprobs == [None, {" two": -0.5}]
    assert whole.logprobs.text_offset == [0, 3]
    stream = await lenient.completions.create(model="any", stream=True, **options)
    chunks = [chunk.choices[0] async for chunk in stream if chunk.choices]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [c.logprobs.tokens for c in chunks if c.logprobs] == [["one", " two"]]


async def test_a_prompt_in_tokens_is_repeated_as_text(lenient: openai.AsyncOpenAI) -> None:
    options: Any = {"prompt": [1, 2], "echo": True, "max_tokens": 1}
    whole = await lenient.completions.create(model="any", **options)
    assert whole.choices[0].text == " t1 t2 t1"
    assert whole.choices[0].logprobs is None
    stream = await lenient.completions.create(model="any", stream=True, **options)
    assert "".join([c.choices[0].text async for c in stream if c.choices]) == " t1 t2 t1"


@pytest.mark.parametrize(("verbosity", "is_verbose"), [(4, False), (9, False), (10, True)])
def test_a_server_is_verbose_from_ten_on(verbosity: int, is_verbose: bool) -> None:
    pool = PoolConfig(log=LogConfig(verbosity=verbosity))
    assert gateway_config(pool, {"bind": ("ipc://x",)}).verbose is is_verbose
    (option,) = (one for one in options.OPTIONS if "-v" in one.flags)
    assert option.value == 10


async def test_a_verbose_server_adds_the_native_answer(tmp_path: Path) -> None:
    async with running(tmp_path, verbose=True) as gateway:
        await gateway.add_worker()
        for path, body in (
            ("/v1/chat/completions", {"messages": MESSAGES}),
            ("/v1/completions", {"prompt": "a"}),
        ):
            answer = (await gateway.post(path, body)).json()
            assert "generation_settings" in answer["__verbose"]
            quiet = (await gateway.post(path, {**body, "verbose": False})).json()
            assert "__verbose" not in quiet


async def test_text_is_inserted_before_a_suffix(sdk: openai.AsyncOpenAI, gateway: Running) -> None:
    answer = await sdk.completions.create(model="any", prompt="def f():", suffix="return x")
    assert answer.choices[0].text == "def f(): return x", "the fake says prefix and suffix"


async def test_without_infill_tokens_an_insertion_is_501(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        await gateway.add_worker(FakeOptions(fim_missing=("suffix",)))
        async with openai.AsyncOpenAI(
            base_url=f"{gateway.url}/v1", api_key="none", max_retries=0
        ) as client:
            with pytest.raises(openai.InternalServerError) as caught:
                await client.completions.create(model="any", prompt="a", suffix="b")
    assert caught.value.status_code == 501
    assert "suffix token is missing" in caught.value.message


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
    async with running(tmp_path, queue_timeout_s=0.2) as gateway:
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
