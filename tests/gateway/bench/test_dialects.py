"""Requests in each endpoint's words, and what their answers say."""

from typing import Any

import pytest

from gateway.bench.client.dialects import Counts, Endpoint, Piece, Said, Target, body, read

HISTORY = [Said("system", "s"), Said("user", "u")]
PLAIN = "s\nu"


def asked(endpoint: Endpoint, **more: Any) -> dict[str, Any]:
    return body(Target(url="", endpoint=endpoint, **more), HISTORY, ("u",), 9)


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        (
            Endpoint.CHAT,
            {
                "messages": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": "u"},
                ],
                "max_tokens": 9,
            },
        ),
        (Endpoint.COMPLETIONS, {"prompt": PLAIN, "max_tokens": 9}),
        (Endpoint.NATIVE, {"prompt": PLAIN, "n_predict": 9}),
        (Endpoint.EMBEDDINGS, {"input": ["u"]}),
    ],
)
def test_every_endpoint_is_asked_in_its_words(endpoint: Endpoint, expected: dict[str, Any]) -> None:
    assert asked(endpoint, stream=False) == expected


def test_streams_ask_for_usage_where_it_must_be_asked_for() -> None:
    assert asked(Endpoint.CHAT)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in asked(Endpoint.NATIVE)
    assert "stream" not in asked(Endpoint.EMBEDDINGS)


def test_other_fields_stand_above_ours() -> None:
    fields = asked(Endpoint.CHAT, ignore_eos=True, model="m", fields={"max_tokens": 3, "top_k": 1})
    assert fields["max_tokens"] == 3 and fields["top_k"] == 1
    assert fields["ignore_eos"] is True and fields["model"] == "m"


USAGE = {
    "usage": {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
}
COUNTED = Counts(n_prompt=5, n_cached=4, n_output=2)


@pytest.mark.parametrize(
    ("endpoint", "answer", "expected"),
    [
        (Endpoint.CHAT, {"choices": [{"delta": {"content": "a"}}]}, Piece(text="a")),
        (Endpoint.CHAT, {"choices": [{"delta": {"reasoning_content": "a"}}]}, Piece(text="a")),
        (
            Endpoint.CHAT,
            {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "a"}}]}}]},
            Piece(text="a"),
        ),
        (Endpoint.CHAT, {"choices": [{"delta": {"role": "assistant", "content": None}}]}, Piece()),
        (
            Endpoint.CHAT,
            {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]},
            Piece(text="a", finish="stop"),
        ),
        (Endpoint.CHAT, {"choices": [], **USAGE}, Piece(counts=COUNTED)),
        (
            Endpoint.COMPLETIONS,
            {"choices": [{"text": "a", "finish_reason": "length"}], **USAGE},
            Piece(text="a", finish="length", counts=COUNTED),
        ),
        (Endpoint.NATIVE, {"content": "a", "stop": False}, Piece(text="a")),
        (
            Endpoint.NATIVE,
            {
                "content": "",
                "stop": True,
                "stop_type": "limit",
                "tokens_evaluated": 5,
                "tokens_predicted": 2,
                "timings": {"cache_n": 4, "prompt_n": 1},
            },
            Piece(finish="limit", counts=Counts(n_prompt=5, n_cached=4, n_computed=1, n_output=2)),
        ),
        (
            Endpoint.EMBEDDINGS,
            {"data": [{"embedding": []}], "usage": {"prompt_tokens": 5}},
            Piece(finish="stop", counts=Counts(n_prompt=5)),
        ),
        (Endpoint.CHAT, {"error": {"message": "m"}}, Piece(error="m")),
        (Endpoint.NATIVE, {"error": "m"}, Piece(error="m")),
    ],
)
def test_answers_are_read(endpoint: Endpoint, answer: dict[str, Any], expected: Piece) -> None:
    assert read(endpoint, answer) == expected
