"""Anthropic's client against /v1/messages: whole, streamed, tools, counts, failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.gateway.clients.test_responses_sdk import SCRIPT
from tests.gateway.inprocess import Running, running
from tests.vendors import anthropic

MESSAGES: Any = [{"role": "user", "content": "one two three"}]


@pytest.fixture
async def sdk(gateway: Running) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """The asynchronous client, strict about what it gets."""
    async with anthropic.AsyncAnthropic(
        base_url=gateway.url, api_key="none", _strict_response_validation=True
    ) as client:
        yield client


async def test_a_message_in_one_piece(sdk: anthropic.AsyncAnthropic) -> None:
    message = await sdk.messages.create(model="any", max_tokens=2, messages=MESSAGES)
    assert message.content[0].type == "text" and message.content[0].text == "one two"
    assert message.stop_reason == "max_tokens"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (3, 2)


async def test_a_stop_sequence_is_reported(sdk: anthropic.AsyncAnthropic) -> None:
    message = await sdk.messages.create(
        model="any", max_tokens=9, messages=MESSAGES, stop_sequences=["three"]
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "three")


async def test_the_clients_own_accumulator_takes_every_event(
    sdk: anthropic.AsyncAnthropic, gateway: Running
) -> None:
    gateway.workers[0].engine.script_next = SCRIPT
    async with sdk.messages.stream(model="any", max_tokens=9, messages=MESSAGES) as stream:
        names = [event.type async for event in stream]
        message = await stream.get_final_message()
    assert names[0] == "message_start" and names[-1] == "message_stop"
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[2].input == {}  # type: ignore[union-attr]  # a use of a tool
    assert message.stop_reason == "tool_use"


async def test_a_message_can_be_sent_back(sdk: anthropic.AsyncAnthropic, gateway: Running) -> None:
    gateway.workers[0].engine.script_next = SCRIPT[:2]
    first = await sdk.messages.create(model="any", max_tokens=9, messages=MESSAGES)
    turns: Any = [*MESSAGES, {"role": "assistant", "content": first.content}]
    turns.append({"role": "user", "content": [{"type": "text", "text": "and then"}]})
    again = await sdk.messages.create(model="any", max_tokens=9, messages=turns, system="Be brief.")
    assert again.content[0].text == "and then"  # type: ignore[union-attr]  # a text
    task = [one for one in gateway.workers[0].received if isinstance(one, m.Generate)][1]
    assert task.chat is not None
    assert [message["role"] for message in task.chat.messages] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert task.chat.messages[2]["reasoning_content"] == "Hm"


async def test_tokens_are_counted(sdk: anthropic.AsyncAnthropic) -> None:
    counted = await sdk.messages.count_tokens(model="any", messages=MESSAGES, system="Be brief.")
    assert counted.input_tokens == 5


async def test_a_mistake_is_a_bad_request_in_anthropics_envelope(
    sdk: anthropic.AsyncAnthropic,
) -> None:
    wrong: Any = [{"role": "user", "content": 3}]
    with pytest.raises(anthropic.BadRequestError) as caught:
        await sdk.messages.create(model="any", max_tokens=9, messages=wrong)
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["param"] == "messages[0].content"


async def test_a_thread_begins_and_its_next_turn_asks_for_all_messages(
    sdk: anthropic.AsyncAnthropic,
) -> None:
    async def send(thread: Any) -> anthropic.types.Message:
        return await sdk.messages.create(
            model="any", max_tokens=1, messages=MESSAGES, extra_body={"thread": thread}
        )

    first = await send({"type": "create"})
    assert first.usage.output_tokens == 1
    with pytest.raises(anthropic.NotFoundError) as caught:
        await send({"type": "continue", "previous_message_id": first.id})
    body: Any = caught.value.body
    assert body["error"]["details"] == {"error_code": "thread_not_found"}
    assert body["error"]["param"] == "thread"


async def test_the_key_comes_in_anthropics_header(tmp_path: Path) -> None:
    async with running(tmp_path, api_key=("secret",)) as gateway:
        await gateway.add_worker()
        async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="secret") as client:
            message = await client.messages.create(model="any", max_tokens=1, messages=MESSAGES)
            assert message.usage.output_tokens == 1
        async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="wrong") as client:
            with pytest.raises(anthropic.AuthenticationError) as caught:
                await client.messages.create(model="any", max_tokens=1, messages=MESSAGES)
        body: Any = caught.value.body
        assert body["type"] == "error" and body["error"]["type"] == "authentication_error"


async def test_a_lost_worker_raises_in_the_stream(tmp_path: Path) -> None:
    async with running(tmp_path, queue_timeout_s=0.2) as gateway:
        worker = await gateway.add_worker(FakeOptions(free_running=False))
        async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none") as client:
            asking = asyncio.create_task(
                client.messages.create(model="any", max_tokens=9, messages=MESSAGES, stream=True)
            )
            await worker.got(m.Generate)
            await worker.step(2)
            stream = await asking
            await worker.die()
            with pytest.raises(anthropic.APIStatusError, match="lost"):
                async for _ in stream:
                    pass
