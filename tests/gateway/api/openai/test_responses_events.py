"""Answers of /v1/responses: order and shape of the events, the object, failures."""

import json
from typing import Any

import pytest

from gateway.api.openai.responses.events import ResponsesReply
from gateway.api.reply import TaskOutcome
from gateway.api.results import figures
from protocol.wire.messages import Delta, Done, Finish, Progress, ToolCallDelta
from protocol.wire.sampling import SamplingParams
from tests.gateway.cards import CARD, PROB, done

CALL = ToolCallDelta(index=0, id="abc", name="get_weather", arguments="{")
WHOLE_CALL = ToolCallDelta(index=0, id="abc", name="get_weather", arguments="{}")

THINKING = [Delta(reasoning="Hm", n_predicted=1)]
WRITING = [Delta(text="hi", n_predicted=2), Delta(text=" you", n_predicted=3)]
CALLING = [
    Delta(tool_calls=(CALL,), n_predicted=4),
    Delta(tool_calls=(ToolCallDelta(index=0, arguments="}"),), n_predicted=5),
]


def _reply(n_top: int = -1) -> ResponsesReply:
    return ResponsesReply(CARD, SamplingParams(), echo={"tools": []}, n_top=n_top)


def _events(data: bytes) -> list[dict[str, Any]]:
    events = []
    for block in data.decode().strip().split("\n\n"):
        name, payload = block.split("\n")
        events.append(json.loads(payload.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def _stream(*deltas: Delta, reply: ResponsesReply | None = None) -> list[dict[str, Any]]:
    reply = reply or _reply()
    frames = [reply.delta(0, delta) for delta in deltas]
    return _events(b"".join([*frames, reply.done(0, done(finish=Finish.EOS)), reply.end()]))


def _outcome(**fields: Any) -> TaskOutcome:
    values: dict[str, Any] = {"text": "", "tokens": (), "probs": (), "done": done()}
    return TaskOutcome(**(values | fields))


def test_the_events_of_a_text_come_in_openais_order() -> None:
    events = _stream(*WRITING)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(10))
    assert events[6]["text"] == "hi you"


def test_each_item_is_closed_before_the_next_one_begins() -> None:
    events = _stream(*THINKING, *WRITING, *CALLING)
    assert [event["type"].removeprefix("response.") for event in events[2:]] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [e["output_index"] for e in events if "output_index" in e] == [0] * 6 + [1] * 7 + [2] * 5


def test_the_events_that_end_an_item_repeat_it_whole() -> None:
    events = _stream(*THINKING, *WRITING, *CALLING)
    ends = {event["type"].removeprefix("response."): event for event in events}
    assert ends["reasoning_text.done"]["text"] == "Hm"
    parts = [event["part"] for event in events if event["type"] == "response.content_part.done"]
    assert parts[0] == {"type": "reasoning_text", "text": "Hm"}
    assert parts[1]["text"] == ends["output_text.done"]["text"] == "hi you"
    call = ends["function_call_arguments.done"]
    assert (call["item_id"], call["output_index"]) == ("fc_abc", 2)
    assert (call["name"], call["arguments"]) == ("get_weather", "{}")
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert {item["status"] for item in done} == {"completed"}


def test_parallel_calls_are_closed_one_by_one() -> None:
    other = ToolCallDelta(index=1, id="xyz", name="f", arguments="[]")
    events = _stream(*CALLING, Delta(tool_calls=(other,), n_predicted=6))
    assert [(e["type"].split(".")[-1], e["output_index"]) for e in events[2:-1]] == [
        ("added", 0),
        *[("delta", 0)] * 2,
        *[("done", 0)] * 2,
        ("added", 1),
        ("delta", 1),
        *[("done", 1)] * 2,
    ]
    calls = events[-1]["response"]["output"]
    assert [(call["call_id"], call["arguments"]) for call in calls] == [
        ("call_abc", "{}"),
        ("call_xyz", "[]"),
    ]


def test_text_after_a_call_is_a_message_of_its_own() -> None:
    events = _stream(*WRITING, *CALLING, Delta(text="!", n_predicted=6))
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "message"]
    assert [output[i]["content"][0]["text"] for i in (0, 2)] == ["hi you", "!"]
    assert len({item["id"] for item in output}) == 3


def test_reasoning_text_and_calls_are_three_items() -> None:
    events = _stream(*THINKING, *WRITING, *CALLING)
    added = [e for e in events if e["type"] == "response.output_item.added"]
    assert [event["item"]["id"].split("_")[0] for event in added] == ["rs", "msg", "fc"]
    assert [event["output_index"] for event in added] == [0, 1, 2]
    whole = events[-1]["response"]
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert [item["id"] for item in whole["output"]] == [event["item"]["id"] for event in added]
    assert whole["output"][2]["arguments"] == "{}"
    assert whole["output"][2]["call_id"] == "call_abc"


def test_ids_stay_the_same_over_the_stream() -> None:
    events = _stream(*WRITING)
    responses = [event["response"] for event in events if "response" in event]
    assert len({response["id"] for response in responses}) == 1
    assert responses[0]["id"].startswith("resp_")
    items = {event["item_id"] for event in events if "item_id" in event}
    assert items == {responses[-1]["output"][0]["id"]}


def test_one_merged_delta_opens_each_item_in_turn() -> None:
    merged = Delta(reasoning="Hm", text="hi", tool_calls=(WHOLE_CALL,), n_predicted=3)
    whole = _stream(merged)[-1]["response"]
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}


def test_an_answer_of_nothing_is_complete() -> None:
    events = _stream()
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    assert events[-1]["response"]["output"] == []


def test_progress_is_told_in_the_first_events() -> None:
    reply = _reply()
    message = Progress(total=9, cached=1, processed=5, time_ms=2.5)
    first = _events(reply.progress(0, message))
    second = _events(reply.progress(0, message))
    assert [event["type"] for event in first] == ["response.created", "response.in_progress"]
    assert [event["type"] for event in second] == ["response.in_progress"]
    assert second[0]["prompt_progress"] == {"total": 9, "cache": 1, "processed": 5, "time_ms": 2}
    assert "prompt_progress" not in first[0]


def test_timings_stand_beside_the_last_event_of_a_delta_and_the_response() -> None:
    timed = Delta(text="hi", n_predicted=1, timings=done().timings)
    events = _stream(timed)
    assert [event["type"] for event in events if "timings" in event] == [
        "response.output_text.delta",
        "response.completed",
    ]


def test_the_object_counts_tokens_and_says_whether_it_was_cut() -> None:
    cut = _reply().result([_outcome(text="hi", done=done(finish=Finish.LIMIT))])
    assert cut["status"] == "completed"
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
    assert cut["usage"] == {
        "input_tokens": 4,
        "output_tokens": 2,
        "total_tokens": 6,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 3},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    (item,) = cut["output"]
    assert item["content"] == [
        {"type": "output_text", "annotations": [], "logprobs": [], "text": "hi"}
    ]
    ended = _reply().result([_outcome(text="hi", done=done(finish=Finish.WORD))])
    assert ended["incomplete_details"] is None
    assert ended["completed_at"] >= ended["created_at"]


def test_the_object_holds_the_items_of_the_stream() -> None:
    outcome = _outcome(text="hi", reasoning="Hm", n_reasoning=1, tool_calls=(WHOLE_CALL,))
    result = _reply().result([outcome])
    assert [item["type"] for item in result["output"]] == ["reasoning", "message", "function_call"]
    assert result["output"][0]["content"] == [{"text": "Hm", "type": "reasoning_text"}]
    assert result["usage"]["output_tokens_details"] == {"reasoning_tokens": 1}


def test_probabilities_of_half_a_character_come_with_the_other_half() -> None:
    half = Delta(probs=(PROB,), n_predicted=1)
    rest = Delta(text="é", probs=(PROB,), n_predicted=2)
    events = _stream(half, rest, reply=_reply(n_top=1))
    (delta,) = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [len(item["top_logprobs"]) for item in delta["logprobs"]] == [1, 1]
    (item,) = events[-1]["response"]["output"]
    assert len(item["content"][0]["logprobs"]) == 2


def test_a_failure_is_openais_event_and_then_llama_servers() -> None:
    reply = _reply()
    reply.delta(0, WRITING[0])
    body = {"error": {"code": 503, "message": "lost", "type": "unavailable_error"}}
    first, second = reply.failed(body).decode().strip().split("\n\n")
    assert first.startswith("event: response.failed\n")
    failed = json.loads(first.split("data: ")[1])["response"]
    assert (failed["status"], failed["error"]["message"]) == ("failed", "lost")
    assert json.loads(second.removeprefix("data: ")) == body


def test_a_stop_counts_as_whole_and_a_cut_does_not() -> None:
    def details(message: Done) -> Any:
        return _reply().result([_outcome(done=message)])["incomplete_details"]

    assert details(done(finish=Finish.EOS)) is None
    assert details(done(finish=Finish.NONE)) == {"reason": "max_output_tokens"}


def test_the_probabilities_of_a_text_stand_in_its_own_end() -> None:
    text = Delta(text="a", probs=(PROB,), n_predicted=1)
    events = _stream(text, *CALLING, text, text, reply=_reply(n_top=1))
    ends = [event for event in events if event["type"] == "response.output_text.done"]
    assert [len(end["logprobs"]) for end in ends] == [1, 2]


def test_the_last_events_repeat_only_so_many_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them in each of four events held the loop for 1.7 s."""
    monkeypatch.setattr(figures, "MANY", 10)
    for n, n_repeated in ((3, 3), (4, 0)):  # a token with two alternatives counts three
        reply = _reply(n_top=2)
        delta = Delta(text="a", probs=(PROB,), n_predicted=1)
        frames = [reply.delta(0, delta) for _ in range(n)]
        assert len(reply._probs) == n_repeated
        events = _events(b"".join([*frames, reply.done(0, done(finish=Finish.EOS))]))
        parts = [event for event in events if event["type"] == "response.output_text.delta"]
        assert [len(part["logprobs"]) for part in parts] == [1] * n
        (item,) = events[-1]["response"]["output"]
        assert len(item["content"][0]["logprobs"]) == n_repeated


def test_alternatives_of_reasoning_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MANY", 10)
    reply = _reply(n_top=2)
    for _ in range(1000):
        reply.delta(0, Delta(reasoning="a", probs=(PROB,), n_predicted=1))
    assert len(reply._unreported) <= 4
