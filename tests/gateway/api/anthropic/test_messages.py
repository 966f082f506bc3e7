"""Bodies of /v1/messages: blocks become chat messages, fields those of a chat."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.api.anthropic.messages import plan
from gateway.api.fields.media_links import MediaLink
from protocol.errors import InvalidRequest, TaskError
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Chat
from tests.gateway.cards import CARD

SEEING = replace(CARD, media_marker="<M>", has_vision=True)
_ANEW = replace(CARD, prefill_assistant=False)
HI = [{"role": "user", "content": "hi"}]
TOOL = {"name": "f", "description": "does", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
FOUND = {
    "type": "search_result",
    "source": "http://x",
    "title": "T",
    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _use(id_: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": "f", "input": {"a": 1}}


def _result(id_: str, content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": content}


def _body(**fields: Any) -> dict[str, Any]:
    return {"messages": HI, **fields}


def _chat(body: dict[str, Any], card: ModelCard = CARD) -> Chat:
    (task,) = plan(body, card).tasks
    assert task.chat is not None
    return task.chat


def _messages(*messages: Any, card: ModelCard = CARD) -> list[dict[str, Any]]:
    return list(_chat({"messages": list(messages)}, card).messages)


def _system(value: Any) -> list[dict[str, Any]]:
    return list(_chat({"system": value, "messages": []}).messages)


def test_system_blocks_follow_each_other() -> None:
    assert _system("a") == [{"role": "system", "content": "a"}]
    assert _system([_text("a"), _text("b")]) == [{"role": "system", "content": "ab"}]
    assert _system(None) == []


def test_the_stamp_of_anthropics_own_client_does_not_spoil_the_cache() -> None:
    def prompt(stamp: str) -> Any:
        return _system(f"x-anthropic-billing-header: cc_version=2; cch={stamp};You are …")

    assert prompt("a5145") == prompt("00000")
    assert _system("cch=a5145;")[0]["content"] == "cch=a5145;"


def test_an_assistants_blocks_are_one_message() -> None:
    blocks = [{"type": "thinking", "thinking": "Hm", "signature": ""}, _text("I look"), _use("1")]
    assert _messages({"role": "assistant", "content": blocks}, card=_ANEW) == [
        {
            "role": "assistant",
            "content": [_text("I look")],
            "reasoning_content": "Hm",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
            ],
        }
    ]


def test_results_of_tools_are_messages_of_their_own_in_their_place() -> None:
    blocks = [_result("1", "4"), _result("2", [_text("a"), _text("b")]), _text("So?")]
    assert _messages({"role": "user", "content": blocks}) == [
        {"role": "tool", "tool_call_id": "1", "content": "4"},
        {"role": "tool", "tool_call_id": "2", "content": "ab"},
        {"role": "user", "content": [_text("So?")]},
    ]


def test_images_stand_in_their_places() -> None:
    remote = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    asked = {"role": "user", "content": [_text("a"), IMAGE, remote]}
    answered = {"role": "user", "content": [_result("1", [_text("a"), IMAGE])]}
    planned = plan({"messages": [asked, answered]}, SEEING)
    (task,) = planned.tasks
    assert task.chat is not None
    assert [message["content"] for message in task.chat.messages] == ["a<M><M>", "a<M>"]
    assert task.media == (b"\0", b"", b"\0")
    (link,) = planned.links
    assert link == MediaLink(1, "http://x/y.png", "messages[0].content[2].source.url", "image")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"type": "text", "media_type": "text/plain", "data": "body"}, "body"),
        ({"type": "content", "content": "body"}, "body"),
        ({"type": "content", "content": [_text("a"), _text("b")]}, "a\nb"),
    ],
)
def test_a_documents_text_is_read(source: dict[str, Any], text: str) -> None:
    document = {"type": "document", "source": source, "citations": {"enabled": True}}
    whole = document | {"title": "T", "context": "C"}
    (message,) = _messages({"role": "user", "content": [document, whole, _text("Sum up")]})
    texts = [part["text"] for part in message["content"]]
    assert texts == [text, f"T\nC\n{text}", "Sum up"]


def test_what_a_search_found_is_read_in_messages_and_results() -> None:
    (message,) = _messages({"role": "user", "content": [FOUND]})
    assert message["content"] == [_text("T\nhttp://x\na\nb")]
    tool = {"type": "tool_reference", "tool_name": "f"}
    (result,) = _messages({"role": "user", "content": [_result("1", [FOUND, tool, _text("c")])]})
    assert result["content"] == "T\nhttp://x\na\nb\nf\nc"


def test_what_anthropics_own_tools_did_is_skipped() -> None:
    use = {"type": "server_tool_use", "id": "1", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "1", "content": []}
    (message,) = _messages({"role": "assistant", "content": [use, found, _text("a")]}, card=_ANEW)
    assert message["content"] == [_text("a")]


@pytest.mark.parametrize(
    "kind",
    [
        *("fallback", "container_upload", "advisor_tool_result"),
        *("mcp_tool_listing", "tool_addition", "tool_removal"),
    ],
)
def test_blocks_for_anthropics_server_are_skipped(kind: str) -> None:
    turn = {"role": "assistant", "content": [{"type": kind}, _text("a")]}
    (message,) = _messages(turn, card=_ANEW)
    assert message["content"] == [_text("a")]


def test_the_summary_of_compacted_turns_is_read_as_text() -> None:
    def compacted(content: str | None) -> dict[str, Any]:
        block = {"type": "compaction", "content": content, "encrypted_content": "x"}
        return {"role": "assistant", "content": [block, _text("a")]}

    (whole,) = _messages(compacted("They met."), card=_ANEW)
    assert whole["content"] == [_text("They met."), _text("a")]
    (failed,) = _messages(compacted(None), card=_ANEW)
    assert failed["content"] == [_text("a")]


def test_an_image_needs_a_model_that_sees() -> None:
    with pytest.raises(TaskError, match="image input is not supported"):
        plan({"messages": [{"role": "user", "content": [IMAGE]}]}, CARD)


def test_an_assistant_without_content_says_nothing() -> None:
    assert _messages({"role": "assistant"}, {"role": "assistant", "content": []}) == []
    assert _messages() == []


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "messages", "'messages' is required"),
        ({"messages": 3}, "messages", "Expected 'messages' to be an array"),
        ({"messages": [{}]}, "messages[0].role", "Field 'messages[0].role': must be a string"),
        (
            {"messages": [{"role": "user"}]},
            "messages[0].content",
            "All non-assistant messages must contain 'content'",
        ),
        (
            {"messages": [{"role": "user", "content": 3}]},
            "messages[0].content",
            "Expected 'content' to be a string or an array",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "browser_state"}]}]},
            "messages[0].content[0].type",
            "Field 'messages[0].content[0].type': \"browser_state\" is not supported",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            "messages[0].content[0].source",
            "Field 'messages[0].content[0].source': must be an object",
        ),
        (
            {"messages": [{"role": "user", "content": [IMAGE | {"type": "document"}]}]},
            "messages[0].content[0].source.type",
            "Field 'messages[0].content[0].source.type': must be text or content",
        ),
        (
            {"messages": [{"role": "user", "content": [FOUND | {"content": None}]}]},
            "messages[0].content[0].content",
            "Field 'messages[0].content[0].content': must be a string or an array",
        ),
        (
            {"messages": [{"role": "user", "content": [FOUND | {"content": [IMAGE]}]}]},
            "messages[0].content[0].content[0].type",
            "Field 'messages[0].content[0].content[0].type': must be text",
        ),
        (
            {"messages": [{"role": "user", "content": ["a"]}]},
            "messages[0].content[0]",
            "Field 'messages[0].content[0]': must be an object",
        ),
        (
            {"messages": [{"role": "user", "content": [{}]}]},
            "messages[0].content[0].type",
            "Field 'messages[0].content[0].type': is required",
        ),
        (
            {"messages": [{"role": "user", "content": [_result("1", [{"type": ["a"]}])]}]},
            "messages[0].content[0].content[0].type",
            "Field 'messages[0].content[0].content[0].type': [\"a\"] is not supported",
        ),
        (
            {"messages": [{"role": "user", "content": [_result("1", [{"type": "x"}])]}]},
            "messages[0].content[0].content[0].type",
            "Field 'messages[0].content[0].content[0].type': \"x\" is not supported",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].source.type",
            "Field 'messages[0].content[0].source.type': must be base64 or url",
        ),
        (_body(system=3), "system", "Field 'system': must be a string or an array"),
        (_body(system=[IMAGE]), "system[0].type", "Field 'system[0].type': must be text"),
        (
            _body(max_tokens="x"),
            "max_tokens",
            "Field 'max_tokens': type must be number, but is string",
        ),
        (
            _body(stop_sequences="x"),
            "stop_sequences",
            "Field 'stop_sequences': must be an array of strings",
        ),
        (_body(tools=3), "tools", "Field 'tools': must be an array"),
        (
            _body(tools=[{"type": 3, "name": "web_search"}]),
            "tools[0].type",
            "Field 'tools[0].type': must be a string",
        ),
        (
            _body(tools=[{"name": "f"}]),
            "tools[0].input_schema",
            "Field 'tools[0].input_schema': must be an object",
        ),
        (
            _body(tool_choice={"type": "x"}),
            "tool_choice.type",
            "Field 'tool_choice.type': must be one of auto, any, tool, none",
        ),
        (
            _body(thinking={"type": "x"}),
            "thinking.type",
            "Field 'thinking.type': must be one of enabled, disabled, adaptive",
        ),
        (
            _body(output_config={"format": {"type": "x"}}),
            "output_config.format",
            "Field 'output_config.format': only json_schema is supported",
        ),
        (
            _body(output_config={"effort": 3}),
            "output_config.effort",
            "Field 'output_config.effort': must be a string",
        ),
        (
            _body(tools=[TOOL | {"name": ""}]),
            "tools[0].name",
            "Failed to parse tools: the name must be a string of 1 to 256 printable characters",
        ),
        (
            _body(tools=[TOOL], tool_choice={"type": "tool", "name": "g"}),
            "tool_choice.name",
            'Invalid tool_choice: no tool is named "g"',
        ),
        (
            _body(mcp_servers=[{"url": "x"}]),
            "mcp_servers",
            "Field 'mcp_servers': remote tools are not supported yet",
        ),
    ],
)
def test_a_mistake_is_named_as_the_client_spelled_it(
    body: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan(body, CARD)
    assert (caught.value.param, caught.value.message) == (param, message)


def test_limits_and_sampling_reach_the_task() -> None:
    body = _body(max_tokens=7, temperature=0.5, top_k=3, stop_sequences=["x"], seed=3)
    params = plan(body, CARD).tasks[0].params
    assert (params.n_predict, params.temperature, params.top_k) == (7, 0.5, 3)
    assert (params.stop, params.seed) == (("x",), 3)
    assert plan(_body(), CARD).tasks[0].params.n_predict == 4096


def test_labels_are_ignored() -> None:
    assert plan(_body(metadata={"user_id": "u"}, service_tier="auto"), CARD).tasks


def test_tools_that_anthropic_runs_are_left_out() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    assert _chat(_body(tools=[search])).tools == ()
    assert len(_chat(_body(tools=[search, TOOL | {"type": "custom"}])).tools) == 1


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("bash_20250124", "bash"),
        ("text_editor_20250728", "str_replace_based_edit_tool"),
        ("memory_20250818", "memory"),
        ("computer_20251124", "computer"),
    ],
)
def test_anthropics_tools_that_the_client_runs_are_known_by_name(kind: str, name: str) -> None:
    tool = {"type": kind, "name": name, "cache_control": {"type": "ephemeral"}}
    chat = _chat(_body(tools=[tool], tool_choice={"type": "tool", "name": name}))
    function = {"name": name, "description": "", "parameters": {}}
    assert chat.tools == ({"type": "function", "function": function},)
    assert chat.tool_choice == f"function:{name}"


@pytest.mark.parametrize("kind", ["bash_code_execution_20250825", "code_execution_20250825"])
def test_tools_with_names_alike_that_anthropic_runs_are_left_out(kind: str) -> None:
    assert _chat(_body(tools=[{"type": kind, "name": "bash_20250124"}])).tools == ()


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "web_search"}])
def test_a_choice_of_skipped_tools_is_free(choice: Any) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    chat = _chat(_body(tools=[search], tool_choice=choice))
    assert (chat.tools, chat.tool_choice) == ((), "auto")


def test_a_call_cannot_be_required_without_any_tools() -> None:
    with pytest.raises(InvalidRequest, match="there are no tools"):
        plan(_body(tools=[], tool_choice={"type": "any"}), CARD)


def test_tools_are_rewritten() -> None:
    function = {"name": "f", "description": "does", "parameters": {"type": "object"}}
    assert _chat(_body(tools=[TOOL])).tools == ({"type": "function", "function": function},)


@pytest.mark.parametrize(
    ("choice", "meant", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any"}, "required", None),
        ({"type": "none"}, "none", None),
        ({"type": "tool", "name": "f"}, "function:f", None),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
    ],
)
def test_the_choice_of_tools_is_rewritten(choice: Any, meant: str, parallel: bool | None) -> None:
    chat = _chat(_body(tools=[TOOL], tool_choice=choice))
    assert (chat.tool_choice, chat.parallel_tool_calls) == (meant, parallel)


@pytest.mark.parametrize(
    ("thinking", "kwargs", "budget"),
    [
        ({"type": "enabled", "budget_tokens": 64}, {"enable_thinking": True}, 64),
        ({"type": "enabled"}, {"enable_thinking": True}, 10000),
        ({"type": "disabled", "budget_tokens": 64}, {"enable_thinking": False}, -1),
        ({"type": "adaptive"}, None, -1),
    ],
)
def test_thinking_is_told_to_the_template(thinking: Any, kwargs: Any, budget: int) -> None:
    task = plan(_body(thinking=thinking), CARD).tasks[0]
    assert task.chat is not None and task.chat.kwargs == kwargs
    assert task.params.reasoning_budget_tokens == budget


def test_a_schema_and_an_effort_are_asked_for_as_a_chat_asks() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    chat = _chat(_body(output_config={"effort": "low", "format": form}))
    assert chat.kwargs == {"reasoning_effort": "low"}
    assert chat.schema == '{"type":"object"}'
