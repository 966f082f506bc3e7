"""Chats with tools, reasoning and partial answers: prompt, grammar, and what is expected."""

import json
from functools import cache
from typing import Any

import pytest

from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Chat
from tests.worker.chat_templates import HERMES, MESSAGES, NO_SYSTEM, OPENER, TEXT_ARGUMENTS, THINKER
from tests.worker.grammar.test_matcher import matcher, say
from worker.grammar.gbnf.parser import parse as parse_grammar
from worker.output.formats.choice import FORMATS, GENERIC, choose_format
from worker.prompt.chat.built_in import BuiltInReader
from worker.prompt.chat.conversation import ChatPrompt, ConversationReader

USER = {"role": "user", "content": "hi"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    ],
}
RESULT = {"role": "tool", "content": "sunny", "tool_call_id": "1"}


def reader_card(template: str) -> ModelCard:
    """A model with a template."""
    return ModelCard(
        name="m", path="m", n_slots=1, n_ctx=512, n_ctx_total=512, chat_template=template
    )


@cache
def reader(template: str) -> ConversationReader:
    """A reader over a template, which takes 5 ms to compile."""
    return ConversationReader(reader_card(template))


def read(template: str, *messages: dict[str, Any], **fields: Any) -> ChatPrompt:
    """Read a chat."""
    return reader(template).read(Chat(messages=messages or (USER,), **fields))


def test_every_format_is_found_by_its_marks() -> None:
    for row in FORMATS:
        assert choose_format("tools " + " ".join(row.marks)) is row


@pytest.mark.parametrize("template", ["", "{{ messages }}", "tools <tool_call><parameter=x>"])
def test_other_templates_call_in_the_generic_way(template: str) -> None:
    assert choose_format(template) is GENERIC


def test_reasoning_that_is_cut_out_of_old_answers_is_found() -> None:
    found = reader("{{ content.split('</think>') }}").reasoning_marks
    assert found is not None and found.open == "<think>"
    assert reader("{{ content }}").reasoning_marks is None


def test_tools_go_into_the_template() -> None:
    prompt = read(HERMES, tools=(WEATHER, TIME))
    assert '"name": "get_weather"' in prompt.text and '"name": "get_time"' in prompt.text
    assert prompt.text.endswith("[user]hi\n[assistant]")
    assert prompt.expected is not None
    assert prompt.expected.names == {"get_weather", "get_time"}


def test_a_plain_chat_is_not_parsed() -> None:
    assert read(HERMES) == ChatPrompt(text="[user]hi\n[assistant]", generation_prompt="[assistant]")


def test_with_choice_none_tools_are_shown_but_not_called() -> None:
    prompt = read(HERMES, tools=(WEATHER,), tool_choice="none")
    assert "get_weather" in prompt.text
    assert prompt.expected is None and not prompt.grammar


def test_earlier_calls_are_objects_where_the_template_writes_json() -> None:
    prompt = read(HERMES, USER, CALLED, RESULT, tools=(WEATHER,))
    assert '{"name": "get_weather", "arguments": {"city": "Rome"}}' in prompt.text
    assert "[tool]sunny" in prompt.text


def test_earlier_calls_are_text_where_the_template_joins_texts() -> None:
    prompt = read(TEXT_ARGUMENTS, USER, CALLED, RESULT, tools=(WEATHER,))
    assert '>>>get_weather\n{"city": "Rome"}' in prompt.text
    assert prompt.expected is not None and prompt.expected.answer_prefix == ">>>"


def test_earlier_calls_that_the_template_leaves_out_are_put_into_words() -> None:
    silent = MESSAGES.partition("{%- for call")[0] + "{% endfor %}{# tools <|tool_call|> #}"
    prompt = read(silent, USER, CALLED, RESULT, tools=(WEATHER,))
    call = '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Rome"}}]'
    assert f"[assistant]{call}\n" in prompt.text and "[tool]sunny" in prompt.text


BLOCKS = """{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}
{%- else %}{% for block in m.content %}<{{ block.thinking or block.text }}>{% endfor %}{% endif %}
{%- endfor %}"""


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (BLOCKS, "[assistant]<Hm><Yes.>"),
        ("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", "[assistant]Yes."),
    ],
)
def test_earlier_reasoning_is_a_block_where_the_template_knows_them(
    template: str, written: str
) -> None:
    answer = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm"}
    assert written in read(template, USER, answer, USER).text


def test_arguments_are_objects_where_the_template_takes_them_apart() -> None:
    template = """tools {% for m in messages %}{% for call in m.tool_calls or [] %}
    {%- set given = call.function.arguments %}{% if given is mapping %}
    {%- for key, value in given | items %}{{ key }}:<{{ value }}>{% endfor %}
    {%- else %}{{ given }}{% endif %}{% endfor %}{% endfor %}"""
    assert "city:<Rome>" in read(template, USER, CALLED, RESULT).text


def test_broken_arguments_of_an_earlier_call_are_refused() -> None:
    function = {"name": "get_weather", "arguments": "{bad"}
    broken = {**CALLED, "tool_calls": [{"type": "function", "function": function}]}
    with pytest.raises(InvalidRequest, match="Failed to parse tool call arguments as JSON"):
        read(HERMES, USER, broken)


def test_a_template_without_tools_gets_them_explained() -> None:
    prompt = read("", USER, CALLED, RESULT, tools=(WEATHER,))
    assert prompt.text.startswith("<|im_start|>system\nYou can call any of the following tools")
    assert '"name": "get_weather"' in prompt.text
    assert "`response` reply to the user's request" in prompt.text
    assert '"tool_calls": [' in prompt.text and '"tool_response": {' in prompt.text
    assert "response" in prompt.grammar and not prompt.triggers


PARTS = {"role": "user", "content": [{"type": "text", "text": t} for t in (" one ", "two")]}


def test_parts_of_a_partial_answer_are_paragraphs() -> None:
    partial = {**PARTS, "role": "assistant"}
    chat = read(HERMES, USER, partial, continue_final_message=True, add_generation_prompt=False)
    assert chat.text.endswith("[assistant] one \n\ntwo")


def test_parts_are_one_text_without_jinja() -> None:
    card = reader_card("chatml")
    assert "user\n one \ntwo<|im_end|>" in BuiltInReader(card).read(Chat(messages=(PARTS,))).text


def test_a_schema_is_shown_where_the_template_of_deepseek_v4_shows_it() -> None:
    marks = "{# tools dsml_token DSML tool_calls parameter #}"
    shown = marks + "{{ response_format | tojson }}"
    assert read(shown, schema='{"type": "integer"}').text == '{"type": "integer"}'
    assert read(shown, schema="{}").text == '{"type": "object"}'
    assert "type" not in read("{{ response_format }}", schema="{}").text


@pytest.mark.parametrize(
    ("source", "kwargs", "param"),
    [
        ("{% for tool in tools %}{% endfor %}", {"tools": 5}, "chat_template_kwargs"),
        ("{{ raise_exception('no') }}", {"tools": 5}, "messages"),
        ("{{ raise_exception('no') }}", {}, "messages"),
    ],
)
def test_a_template_that_fails_by_the_clients_variables_names_them(
    source: str, kwargs: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest, match="cannot render") as caught:
        read("{% if messages[0].content == 'hi' %}" + source + "{% endif %}", kwargs=kwargs)
    assert caught.value.param == param


def test_a_template_without_reasoning_is_told_not_to_think() -> None:
    assert read("{{ enable_thinking }}").text == "False"
    assert read("{{ enable_thinking }}", kwargs={"enable_thinking": True}).text == "True"


def test_a_system_message_goes_to_the_user_where_none_is_allowed() -> None:
    prompt = read(NO_SYSTEM, {"role": "system", "content": "be kind"}, USER)
    assert prompt.text == "[user]be kind\nhi\n[assistant]"


def test_a_developer_is_the_system() -> None:
    prompt = read(HERMES, {"role": "developer", "content": "be kind"}, USER)
    assert "[system]be kind" in prompt.text


# ---- what is enforced ----------------------------------------------------------------------


def test_a_required_call_is_the_whole_answer() -> None:
    prompt = read(HERMES, tools=(WEATHER, TIME), tool_choice="required")
    parse_grammar(prompt.grammar)
    assert "root ::= tool-call (space tool-call)* space\n" in prompt.grammar
    assert 'tool-call ::= "<tool_call>\\n" space (tool-get-weather | tool-get-time)' in (
        prompt.grammar
    )
    assert not prompt.triggers


def test_one_call_where_parallel_ones_are_not_wanted() -> None:
    prompt = read(HERMES, tools=(WEATHER,), tool_choice="required", parallel_tool_calls=False)
    assert "root ::= tool-call space\n" in prompt.grammar


def test_a_named_tool_is_the_only_one_to_call() -> None:
    prompt = read(HERMES, tools=(WEATHER, TIME), tool_choice="function:get_time")
    assert "get_weather" in prompt.text
    assert "get_weather" not in prompt.grammar
    assert prompt.expected is not None and prompt.expected.names == {"get_time"}


def test_an_unknown_named_tool_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="unknown tool: x"):
        read(HERMES, tools=(WEATHER,), tool_choice="function:x")


def test_by_default_the_grammar_waits_for_a_call() -> None:
    prompt = read(HERMES, tools=(WEATHER,))
    assert prompt.triggers == ("<tool_call>",)
    assert 'tool-call ::= "<tool_call>\\n"' in prompt.grammar


@pytest.mark.parametrize("before", ["", '"tool_call_id": "0", '])
def test_an_id_may_come_before_the_name_where_the_template_writes_one(before: str) -> None:
    template = "tools {{ messages }} <|START_ACTION|> {#- tool_name #}"
    grammar = read(template, tools=(TIME,), tool_choice="required").grammar
    call = f'\n    {{{before}"tool_name": "get_time", "parameters": {{}}}}'
    say(matcher(grammar), f"<|START_ACTION|>[\n{call},\n{call}\n\n]<|END_ACTION|>")


def test_a_bad_schema_of_a_tool_is_the_clients_fault() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": 123}}}
    with pytest.raises(InvalidRequest) as caught:
        read(HERMES, tools=(tool,))
    assert caught.value.param == "tools"


def test_reasoning_may_come_before_a_required_call() -> None:
    prompt = read(THINKER, tools=(WEATHER,), tool_choice="required")
    assert 'root ::= space ("<think>" until-think "</think>" space "")? tool-call' in (
        prompt.grammar
    )


def test_opened_reasoning_must_end_before_a_required_call() -> None:
    prompt = read(OPENER, tools=(WEATHER,), tool_choice="required")
    assert 'root ::= until-think "</think>" space tool-call' in prompt.grammar
    assert prompt.expected is not None and prompt.expected.answer_prefix == "<think>\n"


def test_a_schema_takes_the_place_of_tools() -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
    prompt = read(HERMES, tools=(WEATHER,), schema=schema)
    assert "response-format" in prompt.grammar and "tool-call" not in prompt.grammar
    assert prompt.expected is not None and prompt.expected.is_json and not prompt.expected.tools
    fenced = 'space ("```json" space response-format space "```" | space response-format space)'
    assert f"root ::= space {fenced}" in prompt.grammar


@pytest.mark.parametrize(
    ("template", "thinks", "before"),
    [
        (HERMES, True, "space "),
        (THINKER, True, 'space ("<think>" until-think "</think>" "\\n"? "\\n"? "")? '),
        (THINKER, False, ""),
        (OPENER, True, 'until-think "</think>" '),
    ],
)
def test_as_much_space_may_stand_before_json_as_in_llama_server(
    template: str, thinks: bool, before: str
) -> None:
    prompt = read(template, schema='{"type": "null"}', kwargs={"enable_thinking": thinks})
    either = 'space ("```json" space null space "```" | space null space)'
    assert f"root ::= {before}{either}" in prompt.grammar


# ---- reasoning and partial answers --------------------------------------------------------------


def test_reasoning_is_looked_for_unless_refused() -> None:
    prompt = read(THINKER)
    assert prompt.expected is not None and prompt.expected.reasoning_marks is not None
    plain = read(OPENER, reasoning_format="none").expected
    assert plain is not None and plain.is_plain and plain.answer_prefix == "<think>\n"


def test_thinking_that_is_turned_off_is_not_opened() -> None:
    prompt = read(THINKER, kwargs={"enable_thinking": False})
    assert prompt.text.endswith("[assistant]<think>\n\n</think>\n\n")
    assert (
        prompt.expected is not None and prompt.expected.answer_prefix == "<think>\n\n</think>\n\n"
    )


PARTIAL = {"role": "assistant", "content": "The capital is"}
THOUGHT = {"role": "assistant", "content": "", "reasoning_content": "Let me"}


@pytest.mark.parametrize(
    ("template", "last", "thought", "end"),
    [
        (HERMES, PARTIAL, None, "[assistant]The capital is"),
        (HERMES, THOUGHT, None, "[assistant]"),
        (THINKER, PARTIAL, None, "[assistant]<think>\n\n</think>\n\nThe capital is"),
        (THINKER, THOUGHT, None, "[assistant]<think>\nLet me"),
        (THINKER, THOUGHT, False, "[assistant]<think>\nLet me\n</think>\n\n"),
        (THINKER, PARTIAL, True, "[assistant]<think>\n"),
    ],
)
def test_a_partial_answer_is_continued(
    template: str, last: dict[str, Any], thought: bool | None, end: str
) -> None:
    prompt = read(
        template,
        USER,
        last,
        add_generation_prompt=False,
        continue_final_message=True,
        continue_reasoning=thought,
    )
    assert prompt.text == f"[user]hi\n{end}"
    assert prompt.expected is not None and prompt.expected.is_continued


@pytest.mark.parametrize(
    ("template", "form", "is_json"),
    [(HERMES, "none", True), (HERMES, "auto", True), (THINKER, "none", False)],
)
def test_an_answer_in_json_has_no_space_around_it_whatever_becomes_of_reasoning(
    template: str, form: str, is_json: bool
) -> None:
    prompt = read(template, USER, schema='{"type": "string"}', reasoning_format=form)
    assert prompt.expected is not None and prompt.expected.is_json is is_json


def test_the_generation_prompt_can_be_left_out() -> None:
    assert read(HERMES, add_generation_prompt=False).text == "[user]hi\n"
