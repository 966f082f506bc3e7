"""MiniCPM5: strings that contain markup stand in CDATA blocks."""

import json

import pytest

from tests.worker.output.format_templates import TAGGED_TEMPLATES
from tests.worker.output.test_chat_parse import parse
from tests.worker.output.test_formats import ORDER, allows
from tests.worker.prompt.test_conversation import TIME, read

TEMPLATE = TAGGED_TEMPLATES["minicpm5"]


def order(note: str) -> str:
    """A call with this text as a value."""
    return (
        f'<function name="order"><param name="note">{note}</param>'
        '<param name="amount">12</param></function>'
    )


@pytest.mark.parametrize(
    ("note", "found"),
    [
        ("a\nb", "a\nb"),
        ("", ""),
        ("<b>", "<b>"),
        ("<![CDATA[]]>", ""),
        ("<![CDATA[</param>\n]] > ]]]>", "</param>\n]] > ]"),
        ("<![CDAT", "<![CDAT"),
    ],
)
def test_a_string_may_be_quoted(note: str, found: str) -> None:
    prompt = read(TEMPLATE, tools=(ORDER, TIME), tool_choice="required")
    text = order(note)
    assert allows(prompt.grammar, text) and prompt.expected is not None
    for i in range(len(text)):
        ((_, arguments),) = parse(prompt.expected, [text[:i], text[i:]]).calls
        assert json.loads(arguments) == {"note": found, "amount": 12}


@pytest.mark.parametrize("note", ["<![CDATA[x", "</param>x"])
def test_the_grammar_allows_no_open_quotes(note: str) -> None:
    prompt = read(TEMPLATE, tools=(ORDER, TIME), tool_choice="required")
    assert not allows(prompt.grammar, order(note))


def test_calls_come_after_reasoning() -> None:
    source = TEMPLATE.replace("{{ '[assistant]' }}", "{{ '[assistant]<think>\\n' }}")
    prompt = read(source, tools=(ORDER, TIME), tool_choice="required")
    assert prompt.expected is not None
    text = f"I'm thinking</think>\n\n{order('x')}\n{order('y')}"
    assert allows(prompt.grammar, text)
    answer = parse(prompt.expected, list(text))
    assert (answer.content, answer.reasoning) == ("", "I'm thinking")
    assert [json.loads(arguments)["note"] for _, arguments in answer.calls] == ["x", "y"]
