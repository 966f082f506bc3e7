"""Tools, reasoning and partial answers in chat bodies, and how they are answered."""

import json
from typing import Any

import pytest

from gateway.api.openai.chat import plan
from gateway.api.openai.chat_reply import ChatReply
from gateway.api.reply import ResponseOptions, TaskOutcome
from protocol.errors import InvalidRequest
from protocol.wire.messages import Chat, Delta, Finish, ToolCallDelta
from tests.gateway.cards import CARD, done, params

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
CALL = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
ASSISTANT = {"role": "assistant", "content": "The"}


def _chat(**fields: Any) -> Chat:
    (task,) = plan({"messages": HI, **fields}, CARD).tasks
    assert task.chat is not None
    return task.chat


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"tool_choice": "foo"}, "Invalid tool_choice: foo", "tool_choice"),
        ({"tool_choice": 3}, "Field 'tool_choice': type must be string or object", "tool_choice"),
        ({"tool_choice": {"type": "x"}}, 'Invalid tool_choice: {"type":"x"}', "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}},
            'Invalid tool_choice: no tool is named "x"',
            "tool_choice.function.name",
        ),
        ({"tool_choice": "required"}, "there are no tools", "tool_choice"),
        ({"tool_choice": "any"}, "there are no tools", "tool_choice"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}},
            "Field 'tool_choice.allowed_tools.tools': must be an array",
            "tool_choice.allowed_tools.tools",
        ),
        ({"tools": "x"}, "Expected 'tools' to be an array, got \"x\"", "tools"),
        ({"tools": [1]}, "Failed to parse tools: Missing tool type: 1", "tools[0]"),
        ({"tools": [{}]}, "Missing tool type: {}", "tools[0]"),
        ({"tools": [TOOL, {"type": "x"}]}, "Unsupported tool type: ", "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "Missing tool function", "tools[0].function"),
        (
            {"tools": [{"type": "function", "function": {}}]},
            "the name must be a string",
            "tools[0].function.name",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]},
            "the parameters must be an object",
            "tools[0].function.parameters",
        ),
        (
            {"tools": [TOOL], "grammar": 'root ::= "a"'},
            "Cannot use custom grammar constraints with tools.",
            "grammar",
        ),
        (
            {"tools": [TOOL], "logprobs": True, "stream": True},
            "logprobs is not supported with tools + stream",
            "logprobs",
        ),
        ({"parallel_tool_calls": "x"}, "type must be boolean", "parallel_tool_calls"),
        ({"reasoning_format": "x"}, "Unknown reasoning format: x", "reasoning_format"),
        ({"continue_final_message": 3}, "type must be boolean", "continue_final_message"),
        ({"continue_final_message": "x"}, "must be a boolean", "continue_final_message"),
        (
            {"continue_final_message": True, "add_generation_prompt": False},
            "the last message is not the assistant's",
            "continue_final_message",
        ),
        (
            {"messages": [*HI, ASSISTANT, ASSISTANT]},
            "Cannot have 2 or more assistant messages at the end of the list.",
            "messages",
        ),
        (
            {"messages": [*HI, ASSISTANT], "continue_final_message": True},
            "Cannot set both add_generation_prompt and continue_final_message to true.",
            "add_generation_prompt",
        ),
        (
            {"messages": [*HI, {"role": "assistant", "tool_calls": [CALL]}]},
            "Cannot continue an assistant message that contains tool calls.",
            "continue_final_message",
        ),
    ],
)
def test_bad_fields_are_refused_by_name(fields: dict[str, Any], message: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _chat(**fields)
    assert message in caught.value.message
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("x", "Missing tool call type"),
        ({"function": {"name": "f"}}, "Missing tool call type"),
        ({"type": "x"}, "Unsupported tool call type"),
        ({"type": "function"}, "Missing tool call function"),
        ({"type": "function", "function": {}}, "Missing tool call name"),
        ({"type": "function", "function": {"name": "f", "arguments": 3}}, "a string of JSON"),
        ({"type": "function", "function": {"name": "f"}, "id": 3}, "must be a string"),
    ],
)
def test_bad_earlier_calls_are_refused(call: Any, message: str) -> None:
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    with pytest.raises(InvalidRequest, match=message) as caught:
        _chat(messages=[*HI, turn, *HI])
    assert caught.value.message.startswith("Failed to parse messages: ")


def test_a_conversation_with_calls_goes_to_the_worker() -> None:
    result = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "sunny"}]}
    turn = {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None}
    chat = _chat(messages=[*HI, turn, result], tools=[TOOL])
    assert chat.messages[1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert chat.messages[2] == result
    assert chat.tools == (TOOL,)
    assert (chat.tool_choice, chat.parallel_tool_calls) == ("auto", None)


def test_no_calls_are_no_field() -> None:
    chat = _chat(messages=[*HI, {"role": "assistant", "content": "a", "tool_calls": []}, *HI])
    assert chat.messages[1] == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, "auto"),
        ("none", "none"),
        ("required", "required"),
        ("any", "required"),
        ({"type": "function", "function": {"name": "get_weather"}}, "function:get_weather"),
        ({"function": {"name": "get_weather"}}, "function:get_weather"),
    ],
)
def test_every_choice_is_passed_on(choice: Any, expected: str) -> None:
    assert _chat(tools=[TOOL], tool_choice=choice).tool_choice == expected


def test_allowed_tools_leave_out_the_others() -> None:
    other = {"type": "function", "function": {"name": "other"}}
    named = [{"type": "function", "function": {"name": "get_weather"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named}}
    chat = _chat(tools=[other, TOOL], tool_choice=choice)
    assert (chat.tools, chat.tool_choice) == ((TOOL,), "required")


def test_a_grammar_goes_with_tools_that_may_not_be_called() -> None:
    assert _chat(tools=[TOOL], tool_choice="none", grammar='root ::= "a"').tools


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (False, True, None)),
        ({"continue_final_message": True, "add_generation_prompt": False}, (False, True, None)),
        (
            {"continue_final_message": "content", "add_generation_prompt": False},
            (False, True, False),
        ),
        (
            {"continue_final_message": "reasoning_content", "add_generation_prompt": False},
            (False, True, True),
        ),
    ],
)
def test_an_assistants_last_message_is_gone_on_with(fields: Any, expected: Any) -> None:
    chat = _chat(messages=[*HI, ASSISTANT], **fields)
    found = chat.add_generation_prompt, chat.continue_final_message, chat.continue_reasoning
    assert found == expected


def test_the_prompt_may_end_without_the_assistants_turn() -> None:
    chat = _chat(add_generation_prompt=False)
    assert not chat.add_generation_prompt and not chat.continue_final_message


# ---- answers ------------------------------------------------------------------------------------


def _reply() -> ChatReply:
    return ChatReply(CARD, [params()], ResponseOptions(n_top=-1))


def _frames(data: bytes) -> list[Any]:
    return [json.loads(part.removeprefix(b"data: ")) for part in data.split(b"\n\n")[:-1]]


def _deltas(reply: ChatReply, **fields: Any) -> list[Any]:
    frames = _frames(reply.delta(0, Delta(**fields)))
    return [frame["choices"][0]["delta"] for frame in frames]


def test_the_first_piece_of_a_call_names_it_and_the_others_only_add() -> None:
    reply = _reply()
    head = ToolCallDelta(index=0, id="a" * 32, name="get_weather", arguments="{")
    role, first = _deltas(reply, tool_calls=(head,))
    assert role == {"role": "assistant", "content": None}
    assert first == {
        "tool_calls": [
            {
                "index": 0,
                "id": "a" * 32,
                "type": "function",
                "function": {"name": "get_weather", "arguments": "{"},
            }
        ]
    }
    (second,) = _deltas(reply, tool_calls=(ToolCallDelta(index=0, arguments='"city'),))
    assert second == {"tool_calls": [{"index": 0, "function": {"arguments": '"city'}}]}
    (end,) = _frames(reply.done(0, done(finish=Finish.EOS)))
    assert end["choices"] == [{"finish_reason": "tool_calls", "index": 0, "delta": {}}]


def test_reasoning_words_and_calls_of_one_step_are_deltas_of_their_own() -> None:
    call = ToolCallDelta(index=0, id="b", name="f", arguments="{}")
    deltas = _deltas(_reply(), reasoning="hm", text="well", tool_calls=(call,))[1:]
    assert [list(delta) for delta in deltas] == [
        ["reasoning_content"],
        ["content"],
        ["tool_calls"],
    ]


def test_an_answer_that_was_cut_off_says_so_even_with_calls() -> None:
    reply = _reply()
    reply.delta(0, Delta(tool_calls=(ToolCallDelta(index=0, id="b", name="f"),)))
    (end,) = _frames(reply.done(0, done(finish=Finish.LIMIT)))
    assert end["choices"][0]["finish_reason"] == "length"


def test_a_whole_answer_has_its_calls_and_reasoning() -> None:
    call = ToolCallDelta(index=0, id="b", name="f", arguments='{"a": 1}')
    outcome = TaskOutcome(
        text="",
        tokens=(),
        probs=(),
        done=done(finish=Finish.EOS),
        reasoning="hm",
        tool_calls=(call,),
    )
    (choice,) = _reply().result([outcome])["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}, "id": "b"}
        ],
    }


def test_reasoning_and_calls_are_no_fields_where_there_are_none() -> None:
    outcome = TaskOutcome(text="a", tokens=(), probs=(), done=done(finish=Finish.EOS))
    (choice,) = _reply().result([outcome])["choices"]
    assert choice["message"] == {"role": "assistant", "content": "a"}
    assert choice["finish_reason"] == "stop"
