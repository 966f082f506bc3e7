"""Tools on the first layers of the real model, asked by the official OpenAI client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import vendors
from tests.e2e.served import serving
from tests.models.shallow import shallow_path

if TYPE_CHECKING:
    from openai import OpenAI

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

TEMPLATE = Path(__file__).parent / "data" / "hermes.jinja"

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 16}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]


@contextmanager
def client_of(*arguments: str) -> Iterator[OpenAI]:
    """A client of one slot of the model's first layers, whose texts repeat exactly so."""
    model = ("-m", shallow_path(), "-fa", "off", "--cache-branches", "0")
    with (
        serving(*model, "-np", "1", "-c", "2048", "--port", "0", *arguments) as served,
        vendors.openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def hermes() -> Iterator[OpenAI]:
    """A model whose template teaches calls between tags."""
    with client_of("--chat-template-file", str(TEMPLATE)) as client:
        yield client


@pytest.fixture(scope="module")
def plain() -> Iterator[OpenAI]:
    """A model whose template knows no tools."""
    with client_of() as client:
        yield client


@pytest.fixture(params=["hermes", "plain"])
def client(request: pytest.FixtureRequest) -> OpenAI:
    """Either of them."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, vendors.openai.OpenAI)
    return found


def ask(client: OpenAI, **options: Any) -> Any:
    """Ask for the weather, greedily."""
    body = {"model": "any", "messages": ASKED, "temperature": 0, "max_tokens": 120} | options
    body["extra_body"] = {"cache_prompt": False}
    return client.chat.completions.create(**body)


REQUIRED: dict[str, Any] = {
    "tools": [WEATHER],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}


@cache
def called(client: OpenAI) -> Any:
    """Return the answer to `REQUIRED`: several tests look at it, and it takes seconds."""
    return ask(client, **REQUIRED)


def test_a_required_call_is_valid_for_its_schema(client: OpenAI) -> None:
    (choice,) = called(client).choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather" and len(call.id) == 32
    arguments = json.loads(call.function.arguments)
    assert isinstance(arguments.pop("city"), str)
    assert set(arguments) <= {"days"}


def test_the_named_tool_is_called(client: OpenAI) -> None:
    named = {"type": "function", "function": {"name": "add"}}
    answer = ask(client, tools=[WEATHER, ADD], tool_choice=named, parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "add"
    assert set(json.loads(call.function.arguments)) == {"a", "b"}


@pytest.mark.cpu
def test_a_streamed_call_is_the_same_in_pieces(client: OpenAI) -> None:
    (whole,) = called(client).choices[0].message.tool_calls
    chunks = [chunk.choices[0] for chunk in ask(client, stream=True, **REQUIRED)]
    assert chunks[0].delta.role == "assistant" and chunks[-1].finish_reason == "tool_calls"
    pieces = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    assert pieces[0].function.name == "get_weather" and pieces[0].id
    assert pieces[0].function.arguments.startswith("{")
    assert all(piece.id is None and piece.function.name is None for piece in pieces[1:])
    assert "".join(p.function.arguments for p in pieces) == whole.function.arguments
    assert len(pieces) > 3


def test_a_call_and_its_result_can_be_talked_about(client: OpenAI) -> None:
    turn = called(client).choices[0].message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "sunny"}
    answer = ask(client, messages=[*ASKED, turn, result], tools=[WEATHER], tool_choice="none")
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


def test_a_template_without_tools_answers_in_words_or_calls(plain: OpenAI) -> None:
    message = ask(plain, tools=[WEATHER]).choices[0].message
    assert message.tool_calls or message.content
    assert "response" not in (message.content or "")[:12]


def test_a_bad_schema_is_refused_and_the_worker_lives(client: OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "hiccup"}}}
    with pytest.raises(vendors.openai.BadRequestError) as caught:
        ask(client, tools=[tool])
    assert caught.value.param == "tools"
    assert ask(client, max_tokens=2).choices[0].message.content
