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


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
async def test_elsewhere_it_is_refused(gateway: Running, path: str) -> None:
    response = await gateway.post(path, BODY)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tokenize"
