"""MiniMax M3's calls: tags within tags."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.messages import Finish
from tests.worker.chat_cases import BY_NAME
from tests.worker.output.test_chat_parse import parse
from tests.worker.prompt.test_conversation import TIME, USER, read
from tests.worker.served import Served
from worker.grammar.gbnf.parser import parse as parse_grammar
from worker.grammar.parameters import whole_part
from worker.output.chat_parser.nested import _end_of
from worker.output.chat_parser.parser import ExpectedParts
from worker.output.formats.reasoning_marks import listed_reasoning_marks

MARK = "]<]minimax[>["
TEMPLATE = (
    "tools {% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{# ]<]minimax[>[ <tool_call> <invoke name= #}"
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "code": {"type": "string"},
        "n": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "a_b": {"enum": ["x", "y"]},
        "a-b": {"type": "object", "properties": {"c": {"$ref": "#"}, "d": {"type": "number"}}},
        "may": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    },
    "required": ["code", "n"],
}
FUNCTION = {"name": "python", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
EXPECTED = ExpectedParts(
    tools=BY_NAME["minimax-m3"],
    names=frozenset({"python", "get_time"}),
    parts={"python": whole_part(FUNCTION)},
    reasoning_marks=listed_reasoning_marks(TEMPLATE),
)


def written(value: Any) -> str:
    """Write a value as the template does."""
    if isinstance(value, dict):
        return "".join(element(key, written(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return "".join(element("item", written(inner)) for inner in value)
    return value if isinstance(value, str) else json.dumps(value)


def element(tag: str, inner: str) -> str:
    """One element."""
    return f"{MARK}<{tag}>{inner}{MARK}</{tag}>"


def invoke(arguments: Any, name: str = "python") -> str:
    """One call."""
    return f'{MARK}<invoke name="{name}">{written(arguments)}{MARK}</invoke>\n'


def block(*calls: str) -> str:
    """All calls."""
    return f"{MARK}<tool_call>\n{''.join(calls)}{MARK}</tool_call>"


UNKNOWN = f'{MARK}<tool_call>{MARK}<invoke name="x">'
NO_TAG = f'{MARK}<invoke name="python">oops'
ONE = {"code": "if a < b:\n  ]", "n": 1}


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        (block(invoke(ONE)), "", "", [ONE]),
        (block(invoke(ONE), invoke({}, "get_time")), "", "", [ONE, {}]),
        (f"<mm:think>\nHm\n</mm:think>Hi {block(invoke(ONE))}", "Hm\n", "Hi ", [ONE]),
        ("</mm:think>\nHi", "", "\nHi", []),
        (f"</mm:think>{block(invoke(ONE).replace(f'{MARK}<n', f' {MARK}<n'))}", "", "", [ONE]),
        (UNKNOWN, "", UNKNOWN, []),
        (NO_TAG, "", NO_TAG, []),
    ],
)
def test_an_answer_is_taken_apart(
    text: str, reasoning: str, content: str, calls: list[Any]
) -> None:
    for parts in ([text], list(text), [text[:20], text[20:]]):
        answer = parse(EXPECTED, parts)
        assert (answer.reasoning, answer.content) == (reasoning, content)
        assert [json.loads(arguments) for _, arguments in answer.calls] == calls


def test_what_the_schema_says_nothing_of_is_taken_as_it_looks() -> None:
    arguments = {"code": "1", "more": {"x": [1, "a"], "y": True}}
    ((_, found),) = parse(EXPECTED, [block(invoke(arguments))]).calls
    assert json.loads(found) == arguments


TEXT = st.text().filter(lambda text: MARK not in text)
ARGUMENTS = st.fixed_dictionaries(
    {"code": TEXT, "n": st.integers()},
    optional={
        "tags": st.lists(TEXT, max_size=3),
        "a_b": st.sampled_from("xy"),
        "a-b": st.fixed_dictionaries(
            {"d": st.integers()},
            optional={"c": st.fixed_dictionaries({"code": TEXT, "n": st.integers()})},
        ),
        "may": st.none() | st.booleans(),
    },
)


@given(arguments=ARGUMENTS, cut=st.integers(0, 200))
def test_arguments_come_through_as_they_were_written(arguments: dict[str, Any], cut: int) -> None:
    text = block(invoke(arguments))
    ((name, found),) = parse(EXPECTED, [text[:cut], text[cut:]]).calls
    assert name == "python" and json.loads(found) == arguments
    assert parse(EXPECTED, list(text)).calls == ((name, found),)


class _Counted(str):
    """A text that counts how much of it is searched."""

    n_seen = 0

    def find(self, text: str, *place: Any) -> int:
        """Search it."""
        start, end = (*place, len(self))[:2] if place else (0, len(self))
        found = super().find(text, start, end)
        _Counted.n_seen += (end if found < 0 else found) - start
        return found


@pytest.mark.parametrize("n_deep", [1, 500])
def test_the_ends_of_tags_are_found_in_one_pass(n_deep: int) -> None:
    """Two passes for each tag stopped all streams of a worker for 39 s at 160,000 characters."""
    again, close = f"{MARK}<a>", f"{MARK}</a>"
    text = _Counted((again * (n_deep - 1) + close * n_deep) * (500 // n_deep))
    _Counted.n_seen = 0
    assert _end_of(text, 0, again, close) == len(again) * (n_deep - 1) + len(close) * (n_deep - 1)
    assert _Counted.n_seen < 3 * len(text)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_there_is_a_grammar(choice: str) -> None:
    prompt = read(TEMPLATE, USER, tools=(TOOL, TIME), tool_choice=choice)
    parse_grammar(prompt.grammar)
    assert prompt.triggers == ((f"{MARK}<tool_call>",) if choice == "auto" else ())
    assert f'tool-python-arg-n ::= "{MARK}<n>" integer "{MARK}</n>"' in prompt.grammar
    assert f'"{MARK}<a_b>" ("x" | "y")' in prompt.grammar


@pytest.mark.model
def test_the_model_writes_what_the_parser_reads(single: Served) -> None:
    tool = {"name": "python", "parameters": SCHEMA | {"required": ["n", "a_b", "a-b", "may"]}}
    grammar = read(TEMPLATE, USER, tools=({"function": tool},)).grammar  # it begins with the call
    answer = single.ask("Call python.", grammar=grammar, n_predict=400)
    assert answer.done.finish is Finish.EOS, answer.text
    ((name, found),) = parse(EXPECTED, [answer.text]).calls[:1]
    assert name == "python" and {"n", "a_b", "a-b", "may"} <= json.loads(found).keys()
