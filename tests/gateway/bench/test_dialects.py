"""Requests in each endpoint's words, and what their answers say."""

from typing import Any

import pytest

from gateway.bench.client.dialects import (
    AnswerPiece,
    BenchEndpoint,
    BenchTarget,
    ChatTurn,
    Counts,
    body,
    read,
)

HISTORY = [ChatTurn("system", "s"), ChatTurn("user", "u")]
PLAIN = "s\nu"


def asked(endpoint: BenchEndpoint, **more: Any) -> dict[str, Any]:
    return body(BenchTarget(url="", endpoint=endpoint, **more), HISTORY, ("u",), 9)


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        (
            BenchEndpoint.CHAT,
            {
                "messages": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": "u"},
                ],
                "max_tokens": 9,
            },
        ),
        (BenchEndpoint.COMPLETIONS, {"prompt": PLAIN, "max_tokens": 9}),
        (BenchEndpoint.NATIVE, {"prompt": PLAIN, "n_predict": 9}),
        (BenchEndpoint.EMBEDDINGS, {"input": ["u"]}),
    ],
)
def test_every_endpoint_is_asked_in_its_words(
    endpoint: BenchEndpoint, expected: dict[str, Any]
) -> None:
    assert asked(endpoint, stream=False) == expected


def test_streams_ask_for_usage_where_it_must_be_asked_for() -> None:
    assert asked(BenchEndpoint.CHAT)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in asked(BenchEndpoint.NATIVE)
    assert "stream" not in asked(BenchEndpoint.EMBEDDINGS)


def test_other_fields_stand_above_ours() -> None:
    fields = asked(
        BenchEndpoint.CHAT, ignore_eos=True, model="m", fields={"max_tokens": 3, "top_k": 1}
    )
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
        (BenchEndpoint.CHAT, {"choices": [{"delta": {"content": "a"}}]}, AnswerPiece(text="a")),
        (
            BenchEndpoint.CHAT,
            {"choices": [{"delta": {"reasoning_content": "a"}}]},
            AnswerPiece(text="a"),
        ),
        (
            BenchEndpoint.CHAT,
            {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "a"}}]}}]},
            AnswerPiece(text="a"),
        ),
        (
            BenchEndpoint.CHAT,
            {"choices": [{"delta": {"role": "assistant", "content": None}}]},
            AnswerPiece(),
        ),
        (
            BenchEndpoint.CHAT,
            {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]},
            AnswerPiece(text="a", finish="stop"),
        ),
        (BenchEndpoint.CHAT, {"choices": [], **USAGE}, AnswerPiece(counts=COUNTED)),
        (
            BenchEndpoint.COMPLETIONS,
            {"choices": [{"text": "a", "finish_reason": "length"}], **USAGE},
            AnswerPiece(text="a", finish="length", counts=COUNTED),
        ),
        (BenchEndpoint.NATIVE, {"content": "a", "stop": False}, AnswerPiece(text="a")),
        (
            BenchEndpoint.NATIVE,
            {
                "content": "",
                "stop": True,
                "stop_type": "limit",
                "tokens_evaluated": 5,
                "tokens_predicted": 2,
                "timings": {"cache_n": 4, "prompt_n": 1},
            },
            AnswerPiece(
                finish="limit", counts=Counts(n_prompt=5, n_cached=4, n_computed=1, n_output=2)
            ),
        ),
        (
            BenchEndpoint.EMBEDDINGS,
            {"data": [{"embedding": []}], "usage": {"prompt_tokens": 5}},
            AnswerPiece(finish="stop", counts=Counts(n_prompt=5)),
        ),
        (BenchEndpoint.CHAT, {"error": {"message": "m"}}, AnswerPiece(error="m")),
        (BenchEndpoint.NATIVE, {"error": "m"}, AnswerPiece(error="m")),
    ],
)
def test_answers_are_read(
    endpoint: BenchEndpoint, answer: dict[str, Any], expected: AnswerPiece
) -> None:
    assert read(endpoint, answer) == expected
