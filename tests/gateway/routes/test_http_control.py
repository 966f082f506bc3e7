"""POST /v1/chat/completions/control."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from protocol.wire import messages as m
from protocol.wire.side_tasks import EndReasoning
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import Running, running

PATH = "/v1/chat/completions/control"
END = "reasoning_end"


@pytest.fixture
async def stepped(tmp_path: Path) -> AsyncIterator[Running]:
    """A gateway whose one worker moves only by `step`."""
    async with running(tmp_path) as one:
        await one.add_worker(FakeOptions(n_slots=1, n_prefetch=0, free_running=False))
        yield one


async def chat_id(gateway: Running, key: str = "", **fields: Any) -> tuple[str, Any]:
    """Begin a chat; return its id and the response that goes on."""
    messages = [{"role": "user", "content": "a b c d"}]
    body = json.dumps({"messages": messages, "ignore_eos": True, "stream": True, **fields})
    request = gateway.client.build_request(
        "POST", "/v1/chat/completions", content=body, headers={"X-Api-Key": key}
    )
    sending = asyncio.create_task(gateway.client.send(request, stream=True))
    await gateway.workers[0].got(m.Generate)
    await gateway.workers[0].step(2)
    response = await sending
    lines = response.aiter_lines()
    response.extensions["lines"] = lines  # dropped, it would end the response
    async for line in lines:
        if line.startswith("data: "):
            return json.loads(line[6:])["id"], response
    raise AssertionError("no chunk came")


async def test_reasoning_of_a_running_chat_is_ended(stepped: Running) -> None:
    id_, response = await chat_id(stepped, reasoning_control=True)
    answer = await stepped.post(PATH, {"id": id_, "action": END})
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert any(isinstance(one, EndReasoning) for one in stepped.workers[0].received)
    await response.aclose()


async def test_one_tenant_cannot_end_the_reasoning_of_another(tmp_path: Path) -> None:
    async with running(tmp_path, api_key=("one", "two")) as gateway:
        await gateway.add_worker(FakeOptions(n_slots=1, n_prefetch=0, free_running=False))
        id_, response = await chat_id(gateway, "one", reasoning_control=True)
        for key, success in (("two", False), ("one", True)):
            headers = {"X-Api-Key": key}
            answer = await gateway.post(PATH, {"id": id_, "action": END}, headers=headers)
            assert answer.json()["success"] is success
        await response.aclose()


async def test_a_chat_that_did_not_ask_for_it_is_left_alone(stepped: Running) -> None:
    id_, response = await chat_id(stepped)
    answer = await stepped.post(PATH, {"id": id_, "action": END})
    message = "reasoning control not enabled for this completion"
    assert answer.json() == {"success": False, "message": message}
    await response.aclose()


async def test_an_id_that_nobody_knows_is_no_error(stepped: Running) -> None:
    answer = await stepped.post(PATH, {"id": "chatcmpl-x", "action": END})
    assert answer.status_code == 200
    expected = {"success": False, "message": "no active completion for this id"}
    assert answer.json() == expected


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({}, "missing completion id", "id"),
        ({"id": "", "action": END}, "missing completion id", "id"),
        ({"id": "x"}, "unknown control action", "action"),
        ({"id": "x", "action": "stop"}, "unknown control action", "action"),
        ({"id": 3, "action": END}, "Field 'id': type must be string, but is number", "id"),
    ],
)
async def test_mistakes_are_named(
    stepped: Running, body: dict[str, Any], message: str, param: str
) -> None:
    answer = await stepped.post(PATH, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["message"]) == (400, message)
    assert error.get("param") == param
