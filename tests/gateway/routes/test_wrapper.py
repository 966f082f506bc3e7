"""/completions with `tokenize`: the shape of 2023's `api_like_OAI.py`."""

import json
from typing import Any

import pytest

from tests.fakes.echo import token_of
from tests.gateway.inprocess import Running

BODY: dict[str, Any] = {"prompt": "one two three", "tokenize": True}


async def test_the_object_of_the_wrapper(gateway: Running) -> None:
    answer = (await gateway.post("/completions", {**BODY, "n_predict": 2})).json()
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "id": "cmpl",
        "object": "text_completion",
        "truncated": False,
        "model": "LLaMA_CPP",
        "usage": {"completion_tokens": 2, "prompt_tokens": 3, "total_tokens": 5},
        "promptToken": [token_of(word) for word in ("one", " two", " three")],
        "choices": [{"text": "one two", "index": 0, "logprobs": None, "finish_reason": "length"}],
    }


async def test_the_stream_of_the_wrapper_ends_events_with_one_newline(gateway: Running) -> None:
    response = await gateway.post("/completions", {**BODY, "stream": True})
    assert response.headers["content-type"] == "text/event-stream"
    assert "\n\n" not in response.text
    chunks = [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines()]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == "one two three"
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons == [None] * (len(choices) - 1) + ["stop"]
    assert {(chunk["id"], chunk["model"]) for chunk in chunks} == {("cmpl", "LLaMA_CPP")}


async def test_without_it_the_answer_is_native(gateway: Running) -> None:
    for body in ({"prompt": "one"}, {"prompt": "one", "tokenize": False}):
        assert (await gateway.post("/completions", body)).json()["content"] == "one"


@pytest.mark.parametrize("fields", [{"n": 2}, {"prompt": ["a", "b"]}])
async def test_it_answers_one_prompt_once(gateway: Running, fields: dict[str, Any]) -> None:
    response = await gateway.post("/completions", BODY | fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tokenize"


CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "one two"}],
    "tokenize": True,
}


async def test_openais_endpoint_answers_as_the_wrapper_too(gateway: Running) -> None:
    ours, theirs = [
        (await gateway.post(path, {**BODY, "max_tokens": 2})).json()
        for path in ("/completions", "/v1/completions")
    ]
    assert ours | {"created": 0} == theirs | {"created": 0}


async def test_a_chat_of_the_wrapper(gateway: Running) -> None:
    answer = (await gateway.post("/v1/chat/completions", CHAT)).json()
    assert (answer["id"], answer["object"]) == ("chatcmpl", "chat.completion")
    assert answer["promptToken"] == [token_of("one"), token_of(" two")]
    message = {"role": "assistant", "content": "one two"}
    assert answer["choices"] == [{"index": 0, "message": message, "finish_reason": "stop"}]
    response = await gateway.post("/chat/completions", {**CHAT, "stream": True})
    chunks = [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines()]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant"}
    assert "".join(delta["content"] for delta in deltas[1:]) == "one two"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_the_native_endpoint_never_had_it(gateway: Running) -> None:
    answer = (await gateway.post("/completion", BODY)).json()
    assert answer["content"] == "one two three" and "promptToken" not in answer
