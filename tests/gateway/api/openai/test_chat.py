"""Chat bodies: messages, log probabilities, template variables, refusals."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.api.openai.chat import plan
from protocol.errors import InvalidRequest
from tests.gateway.cards import CARD

HI = [{"role": "user", "content": "hi"}]


def _body(**fields: Any) -> dict[str, Any]:
    return {"messages": HI, **fields}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "'messages' is required"),
        ({"messages": None}, "'messages' is required"),
        ({"messages": "a"}, "Expected 'messages' to be an array"),
        ({"messages": ["a"]}, "All non-assistant messages must contain 'content'"),
        ({"messages": [{"content": "a"}]}, "Missing 'role' in message"),
        ({"messages": [{"role": "user"}]}, "All non-assistant messages must contain 'content'"),
        (
            {"messages": [{"role": "assistant"}]},
            "Assistant message must contain either 'content' or 'tool_calls'!",
        ),
        (
            {"messages": [{"role": "user", "content": 3}]},
            "Expected 'content' to be a string or an array",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "x"}]}]},
            "unsupported content[].type",
        ),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "unsupported content[].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": ["x"]}]}]},
            "unsupported content[].type",
        ),
        (_body(top_logprobs=2), "top_logprobs requires logprobs to be set to true"),
        (_body(logprobs="3"), "Field 'logprobs': type must be boolean, but is string"),
        (_body(tool_choice="foo"), "Invalid tool_choice: foo"),
        (
            _body(response_format={"type": "x"}),
            'response_format type must be one of "text" or "json_object", but got: x',
        ),
        (
            _body(chat_template_kwargs={"enable_thinking": "yes"}),
            'invalid type for "enable_thinking" (expected boolean, got string)',
        ),
        (
            _body(chat_template_kwargs={"messages": []}),
            "Field 'chat_template_kwargs.messages': must not be set, "
            "the template gets the request's messages",
        ),
        (_body(stream_options=[]), "Field 'stream_options': type must be object, but is array"),
        (_body(echo=True), "Field 'echo': echo in a chat is not supported yet"),
        (_body(reasoning_effort=3), "Field 'reasoning_effort': must be a string"),
        (_body(n=0), "Field 'n': Value must be between 1 <= value <= 128, but got 0"),
    ],
)
def test_bad_bodies_are_refused_in_llama_servers_words(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan(body, CARD)
    assert caught.value.message == message


def _messages(*messages: dict[str, Any]) -> Any:
    chat = plan({"messages": list(messages)}, CARD).tasks[0].chat
    assert chat is not None
    return chat.messages


def test_no_messages_at_all_are_allowed() -> None:
    assert _messages() == ()


def test_parts_of_text_stay_a_list_for_the_template() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert _messages({"role": "user", "content": parts})[0]["content"] == parts
    assert _messages({"role": "user", "content": []})[0]["content"] == ""


def test_an_assistants_refusal_is_what_it_said() -> None:
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    (message,) = _messages(refusal)
    assert message["content"] == [{"type": "text", "text": "No."}]
    with pytest.raises(InvalidRequest, match=r"content\[0\].refusal': must be a string"):
        _messages({"role": "assistant", "content": [{"type": "refusal", "text": "No."}]})


def test_null_content_is_empty_and_other_keys_stay() -> None:
    (message,) = _messages({"role": "assistant", "content": None, "name": "x"})
    assert message == {"role": "assistant", "content": "", "name": "x"}


@pytest.mark.parametrize("calls", [None, []])
def test_an_assistant_without_content_names_its_calls_if_only_as_none(calls: Any) -> None:
    message = {"role": "assistant", "tool_calls": calls}
    assert _messages(message, *HI)[0] == {"role": "assistant", "content": ""}
    with pytest.raises(InvalidRequest, match="All non-assistant messages must contain 'content'"):
        _messages(message | {"role": "user"})


@pytest.mark.parametrize(
    ("fields", "n_probs"),
    [
        ({"logprobs": True}, 20),
        ({"logprobs": True, "top_logprobs": 3}, 3),
        ({"logprobs": True, "top_logprobs": 0}, 1),
        ({"logprobs": False}, 0),
        ({"logprobs": 5}, 5),
        ({"logprobs": 5.0, "top_logprobs": 2}, 2),
        ({"logprobs": 0}, 0),
        ({"n_probs": 4}, 4),
    ],
)
def test_logprobs_become_n_probs(fields: dict[str, Any], n_probs: int) -> None:
    assert plan(_body(**fields), CARD).tasks[0].params.n_probs == n_probs


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({}, None),
        ({"chat_template_kwargs": {"a": 1}}, {"a": 1}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
    ],
)
def test_template_variables_are_merged(fields: dict[str, Any], kwargs: Any) -> None:
    chat = plan(_body(**fields), CARD).tasks[0].chat
    assert chat is not None and chat.kwargs == kwargs


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"parallel_tool_calls": True, "tools": [], "tool_choice": "auto"},
        {"response_format": {"type": "text"}, "modalities": ["text"], "audio": None},
        {"reasoning_format": "auto", "safety_identifier": "x", "prompt_cache_key": "k"},
        {"some_clients_own_field": {"a": 1}},
    ],
)
def test_what_asks_for_nothing_passes(fields: dict[str, Any]) -> None:
    assert plan(_body(**fields), CARD).tasks


def test_llama_cpp_fields_pass_through_and_n_predict_wins() -> None:
    params = plan(_body(mirostat=2, max_tokens=9, n_predict=4, stop="x"), CARD).tasks[0].params
    assert (params.mirostat, params.n_predict, params.stop) == (2, 4, ("x",))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"a": 1, "reasoning_effort": "low"}),
        ({"chat_template_kwargs": {"a": 2}}, {"a": 2, "reasoning_effort": "low"}),
        ({"reasoning_effort": "high"}, {"a": 1, "reasoning_effort": "high"}),
        ({"reasoning_effort": "none"}, {"a": 1, "enable_thinking": False}),
    ],
)
def test_the_servers_variables_stand_unless_the_request_says_otherwise(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    card = replace(CARD, template_kwargs={"a": 1, "reasoning_effort": "low"})
    chat = plan({"messages": [], **fields}, card).tasks[0].chat
    assert chat is not None and chat.kwargs == expected


@pytest.mark.parametrize(
    ("fields", "expected"), [({}, "none"), ({"reasoning_format": "deepseek"}, "deepseek")]
)
def test_the_servers_reasoning_format_stands_unless_the_request_says_otherwise(
    fields: dict[str, Any], expected: str
) -> None:
    card = replace(CARD, reasoning_format="none")
    chat = plan({"messages": [], **fields}, card).tasks[0].chat
    assert chat is not None and chat.reasoning_format == expected


@pytest.mark.parametrize(
    ("prefills", "fields", "continues"),
    [
        (True, {}, True),
        (False, {}, False),
        (False, {"continue_final_message": True, "add_generation_prompt": False}, True),
    ],
)
def test_a_last_answer_is_only_gone_on_with_if_the_server_prefills(
    prefills: bool, fields: dict[str, Any], continues: bool
) -> None:
    card = replace(CARD, prefill_assistant=prefills)
    body = {"messages": [{"role": "assistant", "content": "So"}], **fields}
    chat = plan(body, card).tasks[0].chat
    assert chat is not None and chat.continue_final_message is continues
    assert chat.add_generation_prompt is not continues
    assert chat.repeats_final_message is (continues and not fields)


@pytest.mark.parametrize("field", ["reasoning_budget_tokens", "thinking_budget_tokens"])
def test_reasoning_has_a_budget(field: str) -> None:
    params = plan({"messages": [], field: 7, "reasoning_control": True}, CARD).tasks[0].params
    assert params.reasoning_budget_tokens == 7 and params.reasoning_control


@pytest.mark.parametrize(
    "field", ["generation_prompt", "reasoning_budget_start_tag", "reasoning_budget_end_tags"]
)
def test_the_marks_of_reasoning_are_the_templates(field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan({"messages": [], field: "<think>"}, CARD)
    assert caught.value.param == field
