"""Calls as templates write them: the parser reads them, and the grammar allows just those."""

import itertools
import json
from typing import Any

import pytest

from tests.worker.grammar.test_matcher import EOG, FIRST_BYTE, follower
from tests.worker.output.format_templates import JSON_TEMPLATES, TAGGED_TEMPLATES
from tests.worker.output.test_chat_parse import parse
from tests.worker.prompt.test_conversation import TIME, USER, read
from worker.output.chat_parser.parser import ExpectedParts
from worker.output.formats.choice import FORMATS, choose_format

TEMPLATES = JSON_TEMPLATES | TAGGED_TEMPLATES
NAMES = sorted(TEMPLATES)
SINGLE = {row.name for row in FORMATS if row.is_single}

ORDER = {
    "type": "function",
    "function": {
        "name": "order",
        "parameters": {
            "type": "object",
            "properties": {"note": {"type": "string"}, "amount": {"type": "integer"}},
            "required": ["note", "amount"],
        },
    },
}
ARGUMENTS = {"note": 'two\n"a < b" </x>', "amount": 12}


def call(name: str, arguments: Any) -> dict[str, Any]:
    """A call of an earlier answer."""
    return {"type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


ONE = (call("order", ARGUMENTS),)
TWO = (*ONE, call("get_time", {}), *ONE)


def written(name: str, calls: tuple[dict[str, Any], ...], content: str = "") -> str:
    """An answer as the template writes it in later prompts."""
    answer = {"role": "assistant", "content": content, "tool_calls": list(calls)}
    text = read(TEMPLATES[name], USER, answer, USER, tools=(ORDER, TIME)).text
    return text.partition("[assistant]")[2].partition("[end]")[0]


def expected_of(name: str) -> ExpectedParts:
    """What a parser is told of an answer to a question with both tools."""
    expected = read(TEMPLATES[name], tools=(ORDER, TIME)).expected
    assert expected is not None
    return expected


def allows(grammar: str, text: str) -> bool:
    """Whether a grammar allows this text as a whole answer."""
    one = follower(grammar)
    for byte in text.encode():
        if not one.is_allowed(FIRST_BYTE + byte):
            return False
        one.accept(FIRST_BYTE + byte)
    return one.is_allowed(EOG)


@pytest.mark.parametrize("name", NAMES)
def test_a_template_is_told_by_its_marks(name: str) -> None:
    assert choose_format(TEMPLATES[name]).name == name


CONTENT = "Hello, [world] <b>!"
ANSWERS = pytest.mark.parametrize(
    ("name", "content", "calls"), [*itertools.product(NAMES, ("", CONTENT), (ONE, TWO))]
)


@ANSWERS
def test_what_the_template_writes_is_read(
    name: str, content: str, calls: tuple[dict[str, Any], ...]
) -> None:
    text, expected = written(name, calls, content), expected_of(name)
    answer = parse(expected, [text])
    called = [(one, json.loads(arguments)) for one, arguments in answer.calls]
    functions = [one["function"] for one in (calls[:1] if name in SINGLE else calls)]
    assert called == [(one["name"], json.loads(one["arguments"])) for one in functions]
    assert (answer.content, answer.reasoning) == (content, "")
    assert parse(expected, list(text)) == answer


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("content", "calls"), [("", ONE), (CONTENT, ONE), ("", TWO)])
def test_it_does_not_matter_where_an_answer_is_cut(
    name: str, content: str, calls: tuple[dict[str, Any], ...]
) -> None:
    """Cut at every place; the first of several calls is cut where it is alone."""
    text, expected = written(name, calls, content), expected_of(name)
    answer = parse(expected, [text])
    first = max(0, text.find("get_time")) if calls is TWO else 0
    for i in range(first, len(text)):
        assert parse(expected, [text[:i], text[i:]]) == answer, text[:i]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_the_grammar_allows_what_the_template_writes(name: str, choice: str) -> None:
    prompt = read(TEMPLATES[name], tools=(ORDER, TIME), tool_choice=choice)
    for calls in (ONE, TWO):
        text = written(name, calls)
        if choice == "auto":
            at = min(text.index(trigger) for trigger in prompt.triggers if trigger in text)
            text = text[at:]
        assert allows(prompt.grammar, text)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_grammar_refuses_what_the_schema_forbids(name: str) -> None:
    grammar = read(TEMPLATES[name], tools=(ORDER, TIME), tool_choice="required").grammar
    text = written(name, ONE)
    assert allows(grammar, text)
    for wrong in (text.replace("12", "x"), text.replace("order", "odder"), "Hi", ""):
        assert not allows(grammar, wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_one_call_is_all_where_no_more_are_wanted(name: str) -> None:
    prompt = read(
        TEMPLATES[name], tools=(ORDER, TIME), tool_choice="required", parallel_tool_calls=False
    )
    assert allows(prompt.grammar, written(name, ONE))
    assert allows(prompt.grammar, written(name, TWO)) == (name in SINGLE)


@pytest.mark.parametrize(("name", "content"), [("gigachat-3", " Hi"), ("gigachat-3.1", "Hi")])
def test_space_before_an_answer_is_kept_where_llama_cpp_keeps_it(name: str, content: str) -> None:
    expected = read(TEMPLATES[name], tools=(TIME,)).expected
    assert expected is not None
    assert parse(expected, list(" Hi")).content == content


def test_calls_in_an_array_are_told_from_single_ones() -> None:
    source = "tools ... within <tool_call></tool_call> XML tags: <tool_calls>[...]</tool_calls>"
    assert choose_format(source).name == "apriel"  # as Apriel 1.5 puts it
