"""Solar Open: reasoning, an answer and calls are messages of their own."""

import json

import pytest

from tests.worker.output.format_templates import JSON_TEMPLATES
from tests.worker.output.test_chat_parse import parse
from tests.worker.output.test_formats import ARGUMENTS, ONE, ORDER, allows, written
from tests.worker.prompt.test_conversation import TIME, read

ASKS = "{{ '<|begin|>assistant' }}{# <|begin|>assistant<|think|> #}"
TEMPLATE = JSON_TEMPLATES["solar-open"].replace("{{ '[assistant]' }}", ASKS)
HASTY = TEMPLATE.replace(ASKS, "{{ '<|begin|>assistant<|think|><|end|>' }}" + ASKS)
THOUGHT = "<|think|>Hm.<|end|><|begin|>assistant"


@pytest.mark.parametrize(
    ("source", "text", "reasoning", "content", "n_calls"),
    [
        (TEMPLATE, f"{THOUGHT}<|content|>Hi<|end|>", "Hm.", "Hi", 0),
        (TEMPLATE, f"{THOUGHT}{written('solar-open', ONE)}<|calls|>", "Hm.", "", 1),
        (TEMPLATE, "<|content|>Hi<|end|>", "", "Hi", 0),
        (HASTY, "<|content|>Hi", "", "Hi", 0),
        (HASTY, written("solar-open", ONE), "", "", 1),
    ],
)
def test_an_answer_is_taken_apart(
    source: str, text: str, reasoning: str, content: str, n_calls: int
) -> None:
    prompt = read(source, tools=(ORDER, TIME))
    assert prompt.expected is not None
    for i in range(len(text)):
        answer = parse(prompt.expected, [text[:i], text[i:]])
        assert (answer.reasoning, answer.content) == (reasoning, content)
        assert [json.loads(found) for _, found in answer.calls] == [ARGUMENTS] * n_calls


def test_an_answer_without_tools_has_no_marks_either() -> None:
    expected = read(TEMPLATE).expected
    assert expected is not None
    answer = parse(expected, list(f"{THOUGHT}<|content|>Hi<|end|>"))
    assert (answer.reasoning, answer.content) == ("Hm.", "Hi")


def test_a_required_call_may_come_after_reasoning() -> None:
    call = written("solar-open", ONE)
    grammar = read(TEMPLATE, tools=(ORDER, TIME), tool_choice="required").grammar
    assert allows(grammar, THOUGHT + call) and allows(grammar, call)
    assert not allows(grammar, f"<|think|>Hm.{call}")
    grammar = read(HASTY, tools=(ORDER, TIME), tool_choice="required").grammar
    assert allows(grammar, call) and not allows(grammar, THOUGHT + call)


def test_an_answer_in_json_has_its_mark() -> None:
    grammar = read(TEMPLATE, schema='{"type": "integer"}').grammar
    assert allows(grammar, f"{THOUGHT}<|content|>1") and allows(grammar, "<|content|>1")
    assert not allows(grammar, "1")
