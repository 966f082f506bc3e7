"""OpenAI's client against /v1/responses: whole, streamed, accumulated, failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import Running, running
from tests.vendors import openai

SCRIPT = (
    m.Delta(reasoning="Hm"),
    m.Delta(text="I look."),
    m.Delta(tool_calls=(m.ToolCallDelta(index=0, id="abc", name="f", arguments="{"),)),
    m.Delta(tool_calls=(m.ToolCallDelta(index=0, arguments="}"),)),
)


@pytest.fixture
async def sdk(gateway: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    """The asynchronous client, strict about what it gets."""
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", _strict_response_validation=True
    ) as client:
        yield client


async def test_a_response_in_one_piece(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.responses.create(model="any", input="one two three", max_output_tokens=2)
    assert answer.output_text == "one two"
    assert answer.id.startswith("resp_")
    assert answer.output[0].type == "message" and answer.output[0].id.startswith("msg_")
    assert answer.incomplete_details is not None
    assert answer.usage is not None and answer.usage.total_tokens == 5


async def test_a_streamed_response(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.responses.create(model="any", input="one two three", stream=True)
    events = [event async for event in stream]
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == "one two three"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == text


async def test_the_clients_own_accumulator_takes_every_event(
    sdk: openai.AsyncOpenAI, gateway: Running
) -> None:
    gateway.workers[0].engine.script_next = SCRIPT
    async with sdk.responses.stream(model="any", input="a") as stream:
        async for _ in stream:
            pass
        answer = await stream.get_final_response()
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
    assert answer.output_text == "I look."
    assert answer.output[2].arguments == "{}"


async def test_a_response_can_be_sent_back_as_input(
    sdk: openai.AsyncOpenAI, gateway: Running
) -> None:
    gateway.workers[0].engine.script_next = (SCRIPT[0], SCRIPT[1])
    answer = await sdk.responses.create(model="any", input="a")
    items: Any = [{"role": "user", "content": "a"}, *answer.output]
    again: Any = await sdk.responses.create(
        model="any", input=[*items, {"role": "user", "content": "and then"}]
    )
    assert again.output_text == "and then"
    (task,) = [one for one in gateway.workers[0].received if isinstance(one, m.Generate)][1:]
    assert task.chat is not None
    assert task.chat.messages[1]["reasoning_content"] == "Hm"


async def test_input_tokens_are_counted(sdk: openai.AsyncOpenAI, gateway: Running) -> None:
    counted = await sdk.responses.input_tokens.count(model="any", input="one two three")
    assert (counted.input_tokens, counted.object) == (3, "response.input_tokens")
    plain = await gateway.post("/responses/input_tokens", {"input": "one two"})
    assert plain.json() == {"input_tokens": 2, "object": "response.input_tokens"}


@pytest.mark.parametrize(
    "form", [None, {"type": "json_schema", "name": "x", "schema": {"type": "object"}}]
)
async def test_the_answer_tells_its_format(sdk: openai.AsyncOpenAI, form: Any) -> None:
    asked: Any = {} if form is None else {"text": {"format": form, "verbosity": "low"}}
    answer = await sdk.responses.create(model="any", input="one", **asked)
    async with sdk.responses.stream(model="any", input="one", **asked) as stream:
        final = await stream.get_final_response()
    for text in (answer.text, final.text):
        assert text is not None
        told = text.to_dict()
        assert told == asked.get("text", {"format": {"type": "text"}})


async def test_a_stored_response_cannot_be_gone_on_with(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.responses.create(model="any", input="a", previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"


async def test_a_lost_worker_fails_the_response_and_raises(tmp_path: Path) -> None:
    async with running(tmp_path, queue_timeout_s=0.2) as gateway:
        worker = await gateway.add_worker(FakeOptions(free_running=False))
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
            asking = asyncio.create_task(
                client.responses.create(model="any", input="one two three", stream=True)
            )
            await worker.got(m.Generate)
            await worker.step(2)
            stream = await asking
            await worker.die()
            last = None
            with pytest.raises(openai.APIError, match="lost"):
                async for event in stream:
                    last = event
            assert last is not None and last.type == "response.failed"
