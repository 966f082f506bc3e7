"""JSON answers, with or without a fence around them."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.chat_cases import THINK
from tests.worker.output.test_chat_parse import JSON, parse
from worker.output.chat_parser.parser import ChatParser, ExpectedParts

EXPECTED = ExpectedParts(is_json=True)
WAYS = ["{}", " {} ", "```json{}```", "\n```json\n{}\n``` \n", "```json {}"]


@pytest.mark.parametrize("way", WAYS)
def test_only_the_json_is_the_answer(way: str) -> None:
    text = way.replace("{}", '{"a": "`` ```json \\" ` \\\\"}')
    for parts in ([text], list(text)):
        assert parse(EXPECTED, parts).content == '{"a": "`` ```json \\" ` \\\\"}'


@given(value=JSON, way=st.sampled_from(WAYS), cuts=st.lists(st.integers(0, 60), max_size=4))
def test_json_comes_through_as_it_was_written(value: object, way: str, cuts: list[int]) -> None:
    written = json.dumps(value, indent=1)
    text = way.replace("{}", written)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert parse(EXPECTED, parts).content == written
    assert parse(EXPECTED, list(text)).content == written


def test_reasoning_may_come_before_the_json() -> None:
    expected = ExpectedParts(is_json=True, reasoning_marks=THINK)
    answer = parse(expected, list("<think>\nHm ```\n</think>\n\n```json\n[1]\n```"))
    assert (answer.reasoning, answer.content) == ("Hm ```\n", "[1]")


def test_an_answer_that_the_limit_cut_is_as_long_as_it_is() -> None:
    assert parse(EXPECTED, ['```json\n{"a": "b ']).content == '{"a": "b '
    assert parse(EXPECTED, ["``"]).content == ""
    assert parse(EXPECTED, list('{\n  "a": 1,\n \n')).content == '{\n  "a": 1,\n \n'
    assert parse(EXPECTED, list('{"a": 1}\n \n')).content == '{"a": 1}'


@pytest.mark.parametrize("text", ["\n", " \n ", "```json\n", "``"])
def test_a_whole_answer_that_was_cut_before_the_json_is_what_was_written(text: str) -> None:
    """As in llama-server, which sends nothing of it in a stream."""
    for parts in ([text], list(text)):
        whole, stream = ChatParser(EXPECTED, is_whole=True), ChatParser(EXPECTED)
        for parser, content in ((whole, text), (stream, "")):
            parsed = [*(parser.feed(part) for part in parts), parser.finish()]
            assert "".join(one.content for one in parsed) == content
