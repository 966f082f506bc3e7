"""Answers of /v1/messages: order and shape of the events, the message, failures."""

import json
from typing import Any

import pytest

from gateway.api.anthropic.events import MessagesReply, failure
from gateway.api.reply import TaskOutcome
from protocol.wire.messages import Delta, Finish, Progress, Started, ToolCallDelta
from tests.gateway.cards import CARD, done

CALL = ToolCallDelta(index=0, id="abc", name="f", arguments='{"a"')
REST = ToolCallDelta(index=0, arguments=":1}")


def _events(data: bytes) -> list[dict[str, Any]]:
    events = []
    for block in data.decode().strip().split("\n\n"):
        name, payload = block.split("\n")
        events.append(json.loads(payload.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def _stream(*deltas: Delta, **fields: Any) -> list[dict[str, Any]]:
    reply = MessagesReply(CARD)
    reply.started(0, Started(slot=0, n_prompt=4, n_cached=3))
    frames = [reply.delta(0, delta) for delta in deltas]
    return _events(b"".join([*frames, reply.done(0, done(**fields)), reply.end()]))


def _outcome(**fields: Any) -> TaskOutcome:
    values: dict[str, Any] = {"text": "", "tokens": (), "probs": (), "done": done()}
    return TaskOutcome(**(values | fields))


def _names(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def test_the_events_of_a_text() -> None:
    events = _stream(Delta(text="hi"), Delta(text=" you"))
    assert _names(events) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    message = events[0]["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    assert message["usage"] == {
        "cache_read_input_tokens": 3,
        "input_tokens": 1,
        "output_tokens": 0,
    }
    assert events[1]["content_block"] == {"type": "text", "text": ""}
    assert events[5]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[5]["usage"] == {"output_tokens": 2}


def test_reasoning_text_and_calls_are_numbered_blocks_each_closed_in_turn() -> None:
    events = _stream(
        Delta(reasoning="Hm"),
        Delta(text="hi"),
        Delta(tool_calls=(CALL,)),
        Delta(tool_calls=(REST, ToolCallDelta(index=1, id="d", name="g"))),
        finish=Finish.EOS,
    )
    blocks = [
        (event["type"].removeprefix("content_block_"), event["index"])
        for event in events
        if "index" in event
    ]
    assert blocks == [
        ("start", 0),
        ("delta", 0),
        ("delta", 0),
        ("stop", 0),
        ("start", 1),
        ("delta", 1),
        ("stop", 1),
        ("start", 2),
        ("delta", 2),
        ("delta", 2),
        ("stop", 2),
        ("start", 3),
        ("stop", 3),
    ]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert deltas[1] == {"type": "signature_delta", "signature": ""}
    assert "".join(d["partial_json"] for d in deltas if "partial_json" in d) == '{"a":1}'
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_an_answer_of_nothing_has_no_blocks() -> None:
    assert _names(_stream()) == ["message_start", "message_delta", "message_stop"]


def test_progress_is_a_ping() -> None:
    reply = MessagesReply(CARD)
    message = Progress(total=9, cached=1, processed=5, time_ms=2.5)
    events = _events(reply.progress(0, message) + reply.progress(0, message))
    assert _names(events) == ["message_start", "ping", "ping"]
    assert events[1]["prompt_progress"]["processed"] == 5


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({"finish": Finish.EOS}, "end_turn", None),
        ({"finish": Finish.LIMIT}, "max_tokens", None),
        ({"finish": Finish.NONE}, "max_tokens", None),
        ({"finish": Finish.WORD, "stopping_word": "x"}, "stop_sequence", "x"),
    ],
)
def test_why_it_stopped(fields: dict[str, Any], reason: str, sequence: str | None) -> None:
    message = MessagesReply(CARD).result([_outcome(text="hi", done=done(**fields))])
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


def test_the_message_in_one_piece() -> None:
    call = ToolCallDelta(index=0, id="abc", name="f", arguments='{"a":1}')
    outcome = _outcome(text="hi", reasoning="Hm", tool_calls=(call,), done=done(finish=Finish.EOS))
    message = MessagesReply(CARD).result([outcome])
    assert message.pop("id").startswith("chatcmpl-")
    assert message == {
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm", "signature": ""},
            {"type": "text", "text": "hi"},
            {"type": "tool_use", "id": "abc", "name": "f", "input": {"a": 1}},
        ],
        "model": "tiny",
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"cache_read_input_tokens": 1, "input_tokens": 3, "output_tokens": 2},
    }


def test_arguments_that_were_cut_off_are_no_input() -> None:
    message = MessagesReply(CARD).result([_outcome(tool_calls=(CALL,))])
    assert message["content"][0]["input"] == {}


def test_a_failure_is_an_event_with_anthropics_envelope() -> None:
    (event,) = _events(failure({"error": {"code": 503, "message": "lost", "type": "x"}}))
    assert event == {"type": "error", "error": {"code": 503, "message": "lost", "type": "x"}}
