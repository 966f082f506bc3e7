"""DeepSeek V3.2 and V4: calls inside reasoning, and values that say whether they are strings."""

import json
from typing import Any

import pytest

from tests.worker.output.format_templates import TAGGED_TEMPLATES
from tests.worker.output.test_chat_parse import parse
from tests.worker.output.test_formats import ARGUMENTS, ONE, ORDER, allows, written
from tests.worker.prompt.test_conversation import TIME, read

NAMES = ["deepseek-v3.2", "deepseek-v4"]


def thinking(name: str) -> str:
    """A template whose prompt begins reasoning."""
    head, _, tail = TAGGED_TEMPLATES[name].rpartition("{{ '[assistant]' }}")
    return f"{head}{{{{ '[assistant]<think>' }}}}{tail}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("end", ["", "</think>", "</think>So: "])
def test_a_call_may_end_reasoning(name: str, end: str) -> None:
    prompt = read(thinking(name), tools=(ORDER, TIME))
    assert prompt.expected is not None and prompt.begun.endswith("<think>")
    text = f"Hm.{end}{written(name, ONE)}"
    for i in range(len(text)):
        answer = parse(prompt.expected, [text[:i], text[i:]])
        assert (answer.reasoning, answer.content) == ("Hm.", end.removeprefix("</think>"))
        assert [json.loads(arguments) for _, arguments in answer.calls] == [ARGUMENTS]


@pytest.mark.parametrize("name", NAMES)
def test_a_required_call_comes_after_reasoning_or_ends_it(name: str) -> None:
    grammar = read(thinking(name), tools=(ORDER, TIME), tool_choice="required").grammar
    for end in ("", "</think>"):
        assert allows(grammar, f"Hm.{end}{written(name, ONE)}")
        assert not allows(grammar, f"Hm.{end}")


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_in_json_comes_only_after_reasoning(name: str) -> None:
    grammar = read(thinking(name), schema='{"type": "integer"}').grammar
    assert allows(grammar, "Hm.</think>```json\n1\n```")
    assert not allows(grammar, "Hm.```json\n1\n```")


PICK = {
    "type": "function",
    "function": {
        "name": "pick",
        "parameters": {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
    },
}


@pytest.mark.parametrize("value", ["null", "", "12", None])
def test_a_value_says_whether_it_is_a_string(value: Any) -> None:
    call = {"type": "function", "function": {"name": "pick", "arguments": json.dumps({"a": value})}}
    text = written("deepseek-v4", (call,))
    prompt = read(TAGGED_TEMPLATES["deepseek-v4"], tools=(PICK,), tool_choice="required")
    assert allows(prompt.grammar, text)
    assert prompt.expected is not None
    ((_, arguments),) = parse(prompt.expected, list(text)).calls
    assert json.loads(arguments) == {"a": value}


@pytest.mark.parametrize(
    ("told", "value", "found"),
    [("false", "x", "x"), ("true", "5", "5"), ("maybe", "5", None), ("false", "[1]", "[1]")],
)
def test_the_schema_stands_where_a_value_says_something_else(
    told: str, value: str, found: str | None
) -> None:
    text = written("deepseek-v4", ONE).replace('"true">two', f'"{told}">{value}</|')
    text = text.replace("</|", "</\uff5cDSML\uff5cparameter>", 1)
    expected = read(TAGGED_TEMPLATES["deepseek-v4"], tools=(ORDER,)).expected
    assert expected is not None
    ((_, arguments),) = parse(expected, list(text)).calls
    assert json.loads(arguments)["note"] == found
