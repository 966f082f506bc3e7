"""Bodies of /v1/responses: items become messages, fields those of a chat."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.api.openai.responses.plan import plan
from protocol.errors import InvalidRequest, TaskError
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Chat
from tests.gateway.cards import CARD

SEEING = replace(CARD, media_marker="<M>", has_vision=True)
_ANEW = replace(CARD, prefill_assistant=False)
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}


def _chat(body: dict[str, Any], card: ModelCard = CARD) -> Chat:
    (task,) = plan(body, card).tasks
    assert task.chat is not None
    return task.chat


def _messages(body: dict[str, Any], card: ModelCard = CARD) -> list[dict[str, Any]]:
    return list(_chat(body, card).messages)


def test_a_string_is_what_the_user_says() -> None:
    assert _messages({"input": "hi", "instructions": "Be brief."}) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]


def test_items_of_one_turn_are_one_message() -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I look", "annotations": []}],
        },
        call,
        call | {"call_id": "call_2", "name": "g"},
        {"type": "function_call_output", "call_id": "call_1", "output": "4"},
        {"type": "function_call_output", "call_id": "call_2", "output": [{**IMAGE}]},
    ]
    assert _messages({"input": items}, SEEING) == [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "I look"}],
            "reasoning_content": "Hm",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "4"}]},
        {
            "role": "tool",
            "tool_call_id": "call_2",
            "content": "<M>",
        },
    ]


@pytest.mark.parametrize("content", [{"content": None}, {}])
def test_an_assistants_message_may_be_without_content(content: dict[str, Any]) -> None:
    item = {"type": "message", "role": "assistant", **content}
    (message, _) = _messages({"input": [item, {"role": "user", "content": "hi"}]})
    assert message == {"role": "assistant", "content": ""}
    with pytest.raises(InvalidRequest, match="must be a string or an array"):
        plan({"input": [item | {"role": "user"}]}, CARD)


def test_reasoning_without_content_is_its_summary_or_nothing() -> None:
    reasoning: dict[str, Any] = {
        "type": "reasoning",
        "summary": [],
        "encrypted_content": "x",
        "content": None,
    }
    assert _messages({"input": [reasoning]}) == []
    summed_up = reasoning | {"summary": [{"type": "summary_text", "text": "Hm"}]}
    assert _messages({"input": [summed_up]}, _ANEW)[0]["reasoning_content"] == "Hm"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "'input' is required"),
        ({"input": 3}, "input", "'input' must be a string or array of objects"),
        ({"input": [3]}, "input[0]", "Cannot determine type of 'item'"),
        ({"input": [{"type": "x"}]}, "input[0]", "Cannot determine type of 'item'"),
        ({"input": [{"type": ["x"]}]}, "input[0]", "Cannot determine type of 'item'"),
        (
            {"input": [{"role": "bard", "content": "a"}]},
            "input[0].role",
            "Cannot determine type of 'item'",
        ),
        (
            {"input": [{"role": "user", "content": 3}]},
            "input[0].content",
            "Field 'input[0].content': must be a string or an array",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "x"}]}]},
            "input[0].content[0].type",
            "'type' must be one of 'input_text', 'input_image', or 'input_file'",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0].type",
            "Field 'input[0].content[0].type': input_file is not supported yet",
        ),
        (
            {"input": [{"type": "item_reference", "id": "msg_1"}]},
            "input[0]",
            "Field 'input[0]': item_reference is not supported: no items are stored",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "a", "name": "f"}]},
            "input[0].arguments",
            "Field 'input[0].arguments': must be a string",
        ),
        (
            {"input": "a", "previous_response_id": "resp_1"},
            "previous_response_id",
            "Field 'previous_response_id': not supported, answers are not stored",
        ),
        (
            {"input": "a", "truncation": "middle"},
            "truncation",
            "Field 'truncation': must be auto or disabled",
        ),
        ({"input": "a", "tools": 3}, "tools", "'tools' must be an array of objects"),
        (
            {"input": "a", "text": {"format": {"type": "x"}}},
            "text.format.type",
            'text.format type must be one of "text" or "json_object", but got: x',
        ),
        (
            {"input": "a", "tools": [{"type": "function", "name": 3}]},
            "tools[0].name",
            "Failed to parse tools: the name must be a string of 1 to 256 printable characters",
        ),
        (
            {"input": "a", "tools": [{"type": "web_search"}, {"type": "function"}]},
            "tools[1].name",
            "Failed to parse tools: the name must be a string of 1 to 256 printable characters",
        ),
        (
            {"input": "a", "text": {"format": {"type": "json_schema", "schema": 3}}},
            "text.format.schema",
            "Field 'text.format.schema': JSON schema conversion failed:\n"
            "JSON schema error at #: schema must be an object",
        ),
        (
            {"input": "a", "max_tokens": "x"},
            "max_tokens",
            "Field 'max_tokens': type must be number, but is string",
        ),
        (
            {"input": [{"type": "reasoning", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "'type' must be one of 'input_text', 'input_image', or 'input_file'",
        ),
        ({"input": "a", "tools": [3]}, "tools[0]", "'tools' must be an array of objects"),
        (
            {"input": "a", "tool_choice": {"type": "web_search"}},
            "tool_choice.type",
            "Field 'tool_choice.type': only functions can be chosen",
        ),
        (
            {"input": "a", "n": 2},
            "n",
            "Field 'n': Value must be between 1 <= value <= 1, but got 2",
        ),
        (
            {"input": "a", "max_output_tokens": "x"},
            "max_output_tokens",
            "Field 'max_output_tokens': type must be number, but is string",
        ),
        (
            {"input": "a", "reasoning": {"effort": 3}},
            "reasoning.effort",
            "Field 'reasoning.effort': must be a string",
        ),
        (
            {"input": "a", "text": {"format": 3}},
            "text.format",
            "Field 'text.format': must be an object",
        ),
        ({"input": "a", "include": "x"}, "include", "Field 'include': must be an array"),
        (
            {"input": "a", "instructions": 3},
            "instructions",
            "Field 'instructions': must be a string",
        ),
    ],
)
def test_a_mistake_is_named_as_the_client_spelled_it(
    body: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan(body, CARD)
    assert (caught.value.param, caught.value.message) == (param, message)


def test_an_image_needs_a_model_that_sees() -> None:
    with pytest.raises(TaskError, match="image input is not supported"):
        plan({"input": [{"role": "user", "content": [IMAGE]}]}, CARD)


def test_what_asks_for_nothing_passes() -> None:
    nothing = {"previous_response_id": None, "background": False, "truncation": "auto"}
    labels = {"store": True, "metadata": {"a": "b"}, "include": ["reasoning.encrypted_content"]}
    assert plan({"input": "a", **nothing, **labels, "tools": [], "text": {}}, CARD).tasks


def test_limits_and_sampling_reach_the_task() -> None:
    body = {"input": "a", "max_output_tokens": 7, "temperature": 0.5, "top_p": 0.5, "seed": 3}
    params = plan(body, CARD).tasks[0].params
    assert (params.n_predict, params.temperature, params.top_p, params.seed) == (7, 0.5, 0.5, 3)


def test_functions_are_rewritten_and_other_tools_skipped() -> None:
    tools = [{"type": "web_search"}, {"type": "function", "name": "f", "parameters": {}}]
    chat = _chat({"input": "a", "tools": tools, "tool_choice": {"type": "function", "name": "f"}})
    function = {"strict": True, "name": "f", "parameters": {}}
    assert chat.tools == ({"type": "function", "function": function},)
    assert chat.tool_choice == "function:f"


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "web_search"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
    ],
)
def test_a_choice_of_skipped_tools_is_free(choice: Any) -> None:
    body = {"input": "a", "tools": [{"type": "web_search_2025_08_26"}], "tool_choice": choice}
    chat = _chat(body)
    assert (chat.tools, chat.tool_choice) == ((), "auto")


def test_a_skipped_tool_that_is_chosen_leaves_the_functions() -> None:
    tools = [{"type": "web_search"}, {"type": "function", "name": "f"}]
    chat = _chat({"input": "a", "tools": tools, "tool_choice": {"type": "web_search"}})
    assert (len(chat.tools), chat.tool_choice) == (1, "auto")
    assert (
        _chat({"input": "a", "tools": tools, "tool_choice": "required"}).tool_choice == "required"
    )


@pytest.mark.parametrize("kind", ["", "web", "web_search_preview", None, 5])
def test_a_choice_of_what_was_not_given_is_refused(kind: Any) -> None:
    body = {"input": "a", "tools": [{"type": "web_search"}], "tool_choice": {"type": kind}}
    with pytest.raises(InvalidRequest, match="only functions can be chosen"):
        plan(body, CARD)


@pytest.mark.parametrize("tools", [None, []])
def test_a_call_cannot_be_required_without_any_tools(tools: Any) -> None:
    with pytest.raises(InvalidRequest, match="there are no tools"):
        plan({"input": "a", "tools": tools, "tool_choice": "required"}, CARD)


def test_allowed_tools_leave_out_the_others() -> None:
    tools = [{"type": "function", "name": name} for name in "fg"]
    named = [{"type": "function", "name": "g"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": named}
    chat = _chat({"input": "a", "tools": tools, "tool_choice": choice})
    assert [tool["function"]["name"] for tool in chat.tools] == ["g"]
    assert chat.tool_choice == "required"


def test_a_format_has_its_schema_beside_its_type() -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    chat = _chat({"input": "a", "text": {"format": form, "verbosity": "low"}})
    assert chat.schema == '{"type":"object"}'
    plain = {"input": "a", "text": {"format": {"type": "text"}}}
    assert _chat(plain | {"response_format": {"type": "json_object"}}).schema is None


def test_effort_becomes_the_templates() -> None:
    assert _chat({"input": "a", "reasoning": {"effort": "low"}}).kwargs == {
        "reasoning_effort": "low"
    }
    assert _chat({"input": "a", "reasoning": {"effort": None}}).kwargs is None


@pytest.mark.parametrize(
    ("fields", "n_probs"),
    [
        ({}, 0),
        ({"include": ["message.output_text.logprobs"]}, 1),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 4}, 4),
        ({"n_probs": 3}, 3),
    ],
)
def test_log_probabilities_are_included_when_asked_for(
    fields: dict[str, Any], n_probs: int
) -> None:
    assert plan({"input": "a", **fields}, CARD).tasks[0].params.n_probs == n_probs
