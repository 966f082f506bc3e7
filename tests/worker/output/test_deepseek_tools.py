"""DeepSeek V3.2 and V4: calls inside reasoning, and values that say whether they are strings."""

import json
from typing import Any

import pytest

from tests.worker.output.format_templates import TAGGED_TEMPLATES
from tests.worker.output.test_chat_parse import parse
from tests.worker.output.test_formats import ARGUMENTS, ONE, ORDER, allows, written
from tests.worker.prompt.test_conversation import TIME, USER, read

NAMES = ["deepseek-v3.2", "deepseek-v4"]


def thinking(name: str) -> str:
    """A template whose prompt begins reasoning."""
    head, _, tail = TAGGED_TEMPLATES[name].rpartition("{{ '[assistant]' }}")
    return f"{head}{{{{ '[assistant]<think>' }}}}{tail}"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("end", ["", "</think>", "</think>So: "])
def test_a_call_may_end_reasoning(name: str, end: str) -> None:
    prompt = read(thinking(name), tools=(ORDER, TIME))
    assert prompt.expected is not None and prompt.generation_prompt.endswith("<think>")
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


def test_v4_reads_results_in_the_order_of_their_calls() -> None:
    calls = [{**ONE[0], "id": name} for name in ("a", "b")]
    answer: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": calls}
    results = [
        {"role": "tool", "tool_call_id": name, "content": f"result {name}"} for name in ("b", "a")
    ]
    user = {"role": "user", "content": "and now?"}
    messages: list[dict[str, Any]] = [
        USER,
        answer,
        results[0],
        user,
        results[1],
        answer,
        *results,
        user,
    ]
    text = read(TAGGED_TEMPLATES["deepseek-v4"], *messages).text
    found = [part[:8] for part in text.split("]")[1:] if part.startswith(("result", "and"))]
    assert found == ["result a", "and now?", "result b", "result a", "result b", "and now?"]
    text = read(TAGGED_TEMPLATES["deepseek-v3.2"], *messages).text
    assert text.index("result b") < text.index("result a")


@pytest.mark.parametrize(("name", "is_shown"), [("deepseek-v3.2", False), ("deepseek-v4", True)])
def test_v4_is_shown_the_schema_of_an_answer(name: str, is_shown: bool) -> None:
    source = TAGGED_TEMPLATES[name] + "{{ response_format | tojson if response_format else '' }}"
    text = read(source, schema='{"type": "integer"}').text
    assert ('{"type": "integer"}' in text) == is_shown
    assert "null" not in read(source).text
    assert ('{"type": "object"}' in read(source, schema="{}").text) == is_shown


def test_v4_without_thinking_begins_with_the_end_of_reasoning() -> None:
    template = thinking("deepseek-v4").replace("<think>", "</think>")
    plain, parsed = (read(template, reasoning_format=form) for form in ("none", "auto"))
    assert plain.expected is not None and parsed.expected is not None
    assert parse(plain.expected, ["Hi."]).content == "</think>Hi."
    assert parse(parsed.expected, ["Hi."]).content == "Hi."
    answer = {"role": "assistant", "content": "So"}
    partial = read(template, USER, answer, continue_final_message=True, add_generation_prompt=False)
    assert partial.text.endswith("[assistant]</think>So")
