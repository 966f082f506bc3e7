"""OpenAI's functions of 2023: they are tools with another spelling."""

import json
from typing import Any

import pytest

from gateway.api.anthropic import messages
from gateway.api.openai.chat import plan
from gateway.api.openai.chat_reply import ChatReply
from gateway.api.openai.responses import plan as responses
from gateway.api.reply import ResponseOptions, TaskOutcome
from protocol.errors import InvalidRequest
from protocol.wire.messages import Chat, Delta, Finish, ToolCallDelta
from tests.gateway.cards import CARD, done, params

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "get_weather", "parameters": {"type": "object"}}
CALL = {"name": "get_weather", "arguments": '{"city":"Oslo"}'}
RESULT = {"role": "function", "name": "get_weather", "content": "rain"}


def _chat(**fields: Any) -> Chat:
    (task,) = plan({"messages": HI, **fields}, CARD).tasks
    assert task.chat is not None
    return task.chat


def _reply() -> ChatReply:
    return ChatReply(CARD, (params(),), ResponseOptions(n_top=-1, names_functions=True))


def test_functions_become_tools_of_which_one_is_called() -> None:
    chat = _chat(functions=[FUNCTION])
    assert chat.tools == ({"type": "function", "function": FUNCTION},)
    assert (chat.tool_choice, chat.parallel_tool_calls) == ("auto", False)


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ({"name": "get_weather"}, "function:get_weather"),
    ],
)
def test_function_call_chooses_as_tool_choice_does(choice: Any, meant: str) -> None:
    assert _chat(functions=[FUNCTION], function_call=choice).tool_choice == meant


@pytest.mark.parametrize(
    "fields", [{"functions": []}, {"functions": None, "function_call": "none"}]
)
def test_no_functions_are_no_tools(fields: dict[str, Any]) -> None:
    assert _chat(**fields).tools == ()


def test_earlier_calls_and_results_become_those_of_tools() -> None:
    asked = {"role": "assistant", "content": None, "function_call": CALL}
    chat = _chat(messages=[*HI, asked, RESULT, asked, RESULT])
    _, first, rain, second, again = chat.messages
    (call,) = first["tool_calls"]
    assert call["function"] == CALL
    assert "function_call" not in first
    assert rain == {
        **RESULT,
        "role": "tool",
        "tool_call_id": call["id"],
    }
    assert second["tool_calls"][0]["id"] == again["tool_call_id"] != call["id"]


def test_a_call_that_nobody_made_may_still_have_a_result() -> None:
    assert _chat(messages=[*HI, RESULT]).messages[1]["role"] == "tool"


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"functions": "x"}, "type must be array", "functions"),
        ({"functions": [1]}, "Missing tool function", "functions[0]"),
        ({"functions": [FUNCTION, {}]}, "the name must be a string", "functions[1].name"),
        ({"functions": [FUNCTION], "tools": [1]}, "together with functions", "tools"),
        ({"functions": [FUNCTION], "tool_choice": "auto"}, "together", "tool_choice"),
        ({"function_call": {"name": "f"}}, "there are no functions", "function_call"),
        ({"functions": [FUNCTION], "function_call": "x"}, "must be auto, none", "function_call"),
        (
            {"functions": [FUNCTION], "function_call": {"name": "x"}},
            "no function is named 'x'",
            "function_call.name",
        ),
        (
            {"messages": [{"role": "function", "content": "x"}]},
            "must be the name of the function",
            "messages[0].name",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "function_call": CALL}]},
            "only a message of the assistant may have it",
            "messages[0].function_call",
        ),
        (
            {"messages": [{"role": "assistant", "function_call": "x"}]},
            "must be an object with a name",
            "messages[0].function_call",
        ),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": 3}}]},
            "a string of JSON",
            "messages[0].function_call",
        ),
        (
            {"messages": [{"role": "assistant", "function_call": CALL, "tool_calls": [1]}]},
            "cannot be used together with tool_calls",
            "messages[0].function_call",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    fields: dict[str, Any], message: str, param: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as refusal:
        plan({"messages": HI, **fields}, CARD)
    assert refusal.value.param == param


def test_a_call_stands_in_function_call() -> None:
    outcome = TaskOutcome(
        text="",
        tokens=(),
        probs=(),
        done=done(finish=Finish.EOS),
        tool_calls=(ToolCallDelta(index=0, id="1", **CALL),),
    )
    (choice,) = _reply().result([outcome])["choices"]
    assert choice["message"] == {"role": "assistant", "content": None, "function_call": CALL}
    assert choice["finish_reason"] == "function_call"


def test_a_streamed_call_names_the_function_once() -> None:
    reply = _reply()
    named = ToolCallDelta(index=0, id="1", name="get_weather")
    more = ToolCallDelta(index=0, arguments="{}")
    stream = reply.delta(0, Delta(tool_calls=(named, more)))
    stream += reply.done(0, done(finish=Finish.EOS))
    chunks = [json.loads(line[6:]) for line in stream.split(b"\n\n") if line]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[1:3] == [
        {"function_call": {"name": "get_weather", "arguments": ""}},
        {"function_call": {"arguments": "{}"}},
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "function_call"


@pytest.mark.parametrize("field", [{"functions": [FUNCTION]}, {"function_call": {"name": "f"}}])
def test_other_chats_know_no_functions(field: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="function"):
        responses.plan({"input": "hi", **field}, CARD)
    with pytest.raises(InvalidRequest, match="function"):
        messages.plan({"messages": HI, "max_tokens": 3, **field}, CARD)
