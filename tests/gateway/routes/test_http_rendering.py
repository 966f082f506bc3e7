"""POST /apply-template and the counting of chat tokens."""

from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.wire import messages as m
from tests.gateway.inprocess import Running

CHAT = {"messages": [{"role": "user", "content": "one two three"}]}


async def test_apply_template_answers_with_the_prompt_alone(gateway: Running) -> None:
    response = await gateway.post("/apply-template", CHAT)
    assert response.status_code == 200
    assert response.json() == {"prompt": "one two three"}
    await gateway.idle()


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_the_tokens_of_a_chat_are_counted(gateway: Running, prefix: str) -> None:
    response = await gateway.post(f"{prefix}/chat/completions/input_tokens", CHAT)
    assert response.json() == {"input_tokens": 3, "object": "response.input_tokens"}


@pytest.mark.parametrize("path", ["/apply-template", "/v1/chat/completions/input_tokens"])
async def test_a_body_without_messages_is_refused(gateway: Running, path: str) -> None:
    response = await gateway.post(path, {"prompt": "x"})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "'messages' is required"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/responses", {"input": "a"}, "input"),
        ("/v1/responses", {"input": "a", "stream": True}, "input"),
        ("/v1/responses/input_tokens", {"input": "a"}, "input"),
        ("/v1/chat/completions", CHAT, "messages"),
        ("/v1/messages", CHAT, "messages"),
    ],
)
async def test_a_templates_complaint_names_the_field_of_the_request(
    gateway: Running, path: str, body: dict[str, Any], param: str
) -> None:
    gateway.workers[0].engine.fail_next = m.Failed(
        code=ErrorCode.INVALID_REQUEST, message="no JSON", param="messages"
    )
    response = await gateway.post(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
