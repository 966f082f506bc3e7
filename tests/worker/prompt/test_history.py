"""Earlier messages in the form that a chat template needs."""

import json
from typing import Any

import pytest

from protocol.errors import InvalidRequest
from tests.worker.chat_templates import HERMES, NO_SYSTEM
from tests.worker.prompt.test_conversation import CALLED, PARTS, RESULT, TIME, USER, WEATHER, read

TYPED = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"
)
NEEDS_PARTS = (
    "{% for m in messages %}{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endfor %}"
)
TWO_AT_LEAST = TYPED.replace("{% else %}", "{% elif m.content | length > 0 %}")
STEPFUN = "{# You have access to the following functions in JSONSchema format #}" + TYPED


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", " one \ntwohi"),
        ("{% for m in messages %}{{ m.content | tojson }}{% endfor %}", '" one \\ntwo""hi"'),
        (TYPED, "< one ><two>hi"),
        (TWO_AT_LEAST, " one \ntwohi"),
        (NEEDS_PARTS, "< one ><two><hi>"),
        (STEPFUN, "<one><two>hi"),
    ],
)
def test_parts_stay_apart_where_the_template_reads_them(template: str, text: str) -> None:
    """As llama.cpp finds it out: a template that does not read an empty list takes texts."""
    assert read(template, PARTS, USER).text == text


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("{{ m.content }}", " one \ntwo"),
        ("{% for part in m.content %}{{ part.output or part }}{% endfor %}", " one \ntwo"),
        ("{% for part in m.content %}({{ part.text }}){% endfor %}", "( one )(two)"),
        ("{{ m.content | tojson }}", json.dumps(PARTS["content"])),
    ],
)
def test_results_in_parts_are_one_text_where_the_template_would_print_a_list(
    written: str, text: str
) -> None:
    """GLM's templates read the parts of what users say, but not of results."""
    list_of_result = "{% if m.role == 'tool' and m.content is not string %}" + written
    template = TYPED.replace("{% if", list_of_result + "{% elif", 1)
    assert read(template, PARTS | {"role": "tool"}).text == text


def test_arguments_of_an_earlier_call_may_be_null() -> None:
    """As JSON, which programs write for a call without arguments."""
    template = """{% for m in messages %}{% for call in m.tool_calls or [] %}<
    {%- for key, value in call.function.arguments.items() %}{{ key }}{{ value }}{% endfor %}>
    {%- endfor %}{% endfor %}"""
    function = {"name": "get_weather", "arguments": "null"}
    called = {**CALLED, "tool_calls": [{"type": "function", "function": function}]}
    assert read(template, USER, called, RESULT).text == "<>"


def test_only_line_breaks_are_indented() -> None:
    said = {"role": "user", "content": "a\u2028b\n\nc\x85\x0c\n"}
    plain, all_lines = (
        "{% for m in messages %}{{ m.content | indent" + form + " }}{% endfor %}"
        for form in ("(2)", "(2, true, true)")
    )
    assert read(plain, said).text == "a\u2028b\n\n  c\x85\x0c\n"
    assert read(all_lines, said).text == "  a\u2028b\n  \n  c\x85\x0c\n  "


_ANY = "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
_READS = _ANY + "{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("m.role == 'system'", {"role": "system"}),
        ("m.role == 'system'", {"role": "developer"}),
        ("m.tool_calls", CALLED),
    ],
)
def test_parts_are_one_text_in_each_message_whose_list_the_template_would_print(
    printed: str, message: dict[str, Any]
) -> None:
    """Kimi K2 prints that of an answer with calls, and Gemma 4 that of the system."""
    template = _READS.replace("m.content is string", "m.content is string or " + printed)
    given = message | {"content": PARTS["content"]}
    assert read(template, given, PARTS).text.endswith("] one \ntwo[user]< one ><two>")


_GPT_OSS = """{# tools #}{% for m in messages %}{% if m.role == 'assistant' %}
{%- if m.tool_calls and m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + (m.thinking or m.content) + '<|end|>' }}
{%- endif %}{% endfor %}"""


@pytest.mark.parametrize("content", ["", "I look."])
def test_gpt_oss_is_told_what_it_thought_before_a_call(content: str) -> None:
    """As in llama-server, its thoughts take the place of words: the template takes one of them."""
    thought = CALLED | {"content": content, "reasoning_content": "Hm."}
    assert "analysis<|message|>Hm.<|end|>" in read(_GPT_OSS, USER, thought, RESULT).text


def test_tools_are_explained_behind_what_a_developer_says() -> None:
    developer = {"role": "developer", "content": "Be brief."}
    text = read(NO_SYSTEM, developer, USER, tools=(WEATHER,)).text
    assert text.startswith("[user]Be brief.\n\nYou can call any of the following tools")


def test_a_tool_without_parameters_is_shown_as_in_llama_server() -> None:
    assert '"parameters": {}' in read(HERMES, tools=(TIME,)).text


def test_methods_of_what_is_absent_give_nothing() -> None:
    """As in llama.cpp: Seed-OSS lists the properties of tools that have no parameters."""
    listed = "{% for name, kind in tools[0].function.parameters.properties.items() %}{{ name }}"
    template = listed + "{% endfor %}{{ tools[0].name.strip('.').upper() }}"
    assert read(template + HERMES, tools=(TIME,)).text == read(HERMES, tools=(TIME,)).text
    for call in ("{{ absent() }}", "{{ messages[0].absent() }}"):
        with pytest.raises(InvalidRequest, match="absent"):
            read(call)


EMPTY_ANSWERS = """{% for message in messages %}{# [TOOL_CALLS] #}
{%- if (message['content'] is none or message['content'] == '' or message['content']|length == 0) \
and (message['tool_calls'] is not defined or message['tool_calls'] is none or \
message['tool_calls']|length == 0) %}{{ raise_exception('empty') }}{% endif %}
{%- endfor %}{{ 'fine' }}"""
CHANNELS_IN_TEXT = """{% for message in messages %}
{%- if "<|channel|>analysis<|message|>" in message.content or \
"<|channel|>final<|message|>" in message.content %}{{ raise_exception('tags') }}{% endif %}
{%- endfor %}{{ 'fine' }}"""


@pytest.mark.parametrize(
    ("template", "content"),
    [(EMPTY_ANSWERS, ""), (CHANNELS_IN_TEXT, "<|channel|>final<|message|>Yes.")],
)
def test_messages_that_llama_server_keeps_templates_from_refusing(
    template: str, content: str
) -> None:
    answer = {"role": "assistant", "content": content}
    assert read(template, USER, answer, USER).text == "fine"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("", '{"b": "é", "a": [1]}'),
        ("(ensure_ascii=true)", '{"b": "\\u00e9", "a": [1]}'),
        ("(true)", '{"b": "\\u00e9", "a": [1]}'),
        ("(separators=(',', ':'))", '{"b":"é","a":[1]}'),
        ("(indent=1)", '{\n "b": "é",\n "a": [\n  1\n ]\n}'),
        ("(sort_keys=true)", '{"a": [1], "b": "é"}'),
    ],
)
def test_json_is_written_as_a_template_asks(options: str, text: str) -> None:
    """With the options of the filter that transformers gives to templates."""
    template = "{{ given | tojson" + options + " }}"
    assert read(template, kwargs={"given": {"b": "é", "a": [1]}}).text == text
