"""The official clients in strict validation: every field of every answer has OpenAI's own type."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from protocol.wire import messages as m
from protocol.wire.facts import TokenProb
from tests.fakes.echo import FakeOptions
from tests.gateway.clients.test_responses_sdk import SCRIPT
from tests.gateway.inprocess import Running, running
from tests.vendors import anthropic, openai

MESSAGES: Any = [{"role": "user", "content": "one two three"}]
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
PROBS = (TokenProb(id=1, piece=b"a", p=-0.5, top=((1, b"a", -0.5), (2, b"b", -1.0))),)
LIKELY = (m.Delta(text="a", tokens=(1,), probs=PROBS, n_predicted=1),)


@pytest.fixture
async def sdk(gateway: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client."""
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="x", _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture
async def claude(gateway: Running) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Anthropic's client."""
    async with anthropic.AsyncAnthropic(
        base_url=gateway.url, api_key="x", _strict_response_validation=True
    ) as client:
        yield client


CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "choices": {"n": 2},
    "cut": {"max_tokens": 1},
    "log probabilities": {"logprobs": True, "top_logprobs": 2},
    "usage": {"stream_options": {"include_usage": True}},
    "verbose": {"extra_body": {"verbose": True}},
    "timings": {"extra_body": {"timings_per_token": True, "return_progress": True}},
}


@pytest.mark.parametrize("fields", CHATS.values(), ids=CHATS.keys())
@pytest.mark.parametrize("script", [None, LIKELY, SCRIPT], ids=["echo", "likely", "tools"])
async def test_chats(
    sdk: openai.AsyncOpenAI, gateway: Running, fields: dict[str, Any], script: Any
) -> None:
    body: dict[str, Any] = {"model": "any", "messages": MESSAGES, **fields}
    if script is SCRIPT and "logprobs" not in fields:
        body["tools"] = [TOOL]
    whole_body = {key: value for key, value in body.items() if key != "stream_options"}
    gateway.workers[0].engine.script_next = script
    whole = await sdk.chat.completions.create(**whole_body)
    assert whole.choices
    gateway.workers[0].engine.script_next = script
    stream = await sdk.chat.completions.create(**body, stream=True)
    assert [chunk async for chunk in stream]


TEXTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several": {"prompt": ["a", "b"], "n": 2},
    "cut": {"max_tokens": 1},
    "log probabilities": {"logprobs": 2},
}


@pytest.mark.parametrize("fields", TEXTS.values(), ids=TEXTS.keys())
async def test_text_completions(
    sdk: openai.AsyncOpenAI, gateway: Running, fields: dict[str, Any]
) -> None:
    """Whole: OpenAI's own streams have null reasons, which its types for them do not know."""
    gateway.workers[0].engine.script_next = LIKELY
    body: dict[str, Any] = {"model": "any", "prompt": "one two", **fields}
    assert (await sdk.completions.create(**body)).choices


RESPONSES: dict[str, dict[str, Any]] = {
    "plain": {},
    "cut": {"max_output_tokens": 1},
    "settings": {"instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0},
    "text": {"text": {"format": {"type": "text"}}},
    "log probabilities": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "tools": {"tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]},
    "tools of few words": {"tools": [{"type": "function", "name": "f"}]},
    "named": {
        "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True}],
        "tool_choice": {"type": "function", "name": "f"},
    },
    "reasoning": {"reasoning": {"effort": "low"}},
    "user": {"user": "me", "safety_identifier": "me", "prompt_cache_key": "a", "store": False},
}


@pytest.mark.parametrize("fields", RESPONSES.values(), ids=RESPONSES.keys())
@pytest.mark.parametrize("script", [None, LIKELY, SCRIPT], ids=["echo", "likely", "tools"])
async def test_responses(
    sdk: openai.AsyncOpenAI, gateway: Running, fields: dict[str, Any], script: Any
) -> None:
    body: dict[str, Any] = {"model": "any", "input": "one two", **fields}
    gateway.workers[0].engine.script_next = script
    assert (await sdk.responses.create(**body)).status == "completed"
    gateway.workers[0].engine.script_next = script
    stream = await sdk.responses.create(**body, stream=True)
    assert [event async for event in stream][-1].type == "response.completed"
    gateway.workers[0].engine.script_next = script
    async with sdk.responses.stream(**body) as accumulated:
        assert (await accumulated.get_final_response()).output


async def test_counts(sdk: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic) -> None:
    assert (await sdk.responses.input_tokens.count(model="any", input="a b")).input_tokens == 2
    counted = await claude.messages.count_tokens(model="any", messages=MESSAGES)
    assert counted.input_tokens == 3


async def test_models_of_openai(sdk: openai.AsyncOpenAI) -> None:
    (listed,) = [model async for model in sdk.models.list()]
    assert await sdk.models.retrieve(listed.id) == listed
    with pytest.raises(openai.NotFoundError, match="model 'other' not found"):
        await sdk.models.retrieve("other")


async def test_models_of_anthropic(claude: anthropic.AsyncAnthropic) -> None:
    page = await claude.models.list()
    assert (page.first_id, page.last_id, page.has_more) == ("fake", "fake", False)
    (listed,) = page.data
    assert (listed.type, listed.display_name) == ("model", "fake")
    assert await claude.models.retrieve("fake") == listed
    with pytest.raises(anthropic.NotFoundError):
        await claude.models.retrieve("other")


async def test_embeddings(tmp_path: Path) -> None:
    """As numbers: the client checks base64, its own default, before it decodes it."""
    async with running(tmp_path) as gateway:
        await gateway.add_worker(FakeOptions(pooling="mean"))
        async with openai.AsyncOpenAI(
            base_url=f"{gateway.url}/v1", api_key="x", _strict_response_validation=True
        ) as sdk:
            for content in ("a", ["a", "b"], [1, 2], [[1], [2]]):
                options: Any = {"input": content, "encoding_format": "float"}
                assert (await sdk.embeddings.create(model="any", **options)).data


@pytest.mark.parametrize("script", [None, SCRIPT], ids=["echo", "tools"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 1},
        {"stop_sequences": ["two"]},
        {"system": "Be brief.", "metadata": {"user_id": "me"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"tools": [{"name": "f", "input_schema": {"type": "object"}}]},
    ],
    ids=str,
)
async def test_messages(
    claude: anthropic.AsyncAnthropic, gateway: Running, fields: dict[str, Any], script: Any
) -> None:
    body: dict[str, Any] = {"model": "any", "max_tokens": 9, "messages": MESSAGES, **fields}
    gateway.workers[0].engine.script_next = script
    assert (await claude.messages.create(**body)).content
    gateway.workers[0].engine.script_next = script
    events = await claude.messages.create(**body, stream=True)
    assert [event.type async for event in events][-1] == "message_stop"
    gateway.workers[0].engine.script_next = script
    async with claude.messages.stream(**body) as stream:
        assert (await stream.get_final_message()).stop_reason


async def test_pages_of_models(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    async with running(tmp_path) as gateway:
        for name in names:
            await gateway.add_worker(FakeOptions(name=name, model=name))
        async with anthropic.AsyncAnthropic(
            base_url=gateway.url, api_key="x", _strict_response_validation=True
        ) as claude:
            assert [model.id async for model in claude.models.list(limit=1)] == names
            last = await claude.models.list(limit=2, before_id="c")
            assert [model.id for model in last.data] == ["a", "b"] and not last.has_more
            with pytest.raises(anthropic.BadRequestError, match="after_id"):
                await claude.models.list(after_id="d")
            with pytest.raises(anthropic.BadRequestError, match="limit"):
                await claude.models.list(limit=0)
        plain = await gateway.client.get("/v1/models/b")
        assert plain.json() == (await gateway.client.get("/v1/models")).json()["data"][1]
