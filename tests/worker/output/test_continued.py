"""Answers that go on: wherever they are cut, the client gets each part once."""

from collections.abc import Sequence

import pytest

from protocol.wire.partial_answer import PartialAnswer
from tests.worker.chat_cases import CASES, Answer
from tests.worker.tagged_cases import TAGGED_CASES
from worker.output.chat_parser.parser import ChatParser, ExpectedParts
from worker.output.chat_parser.sink import ParsedPart
from worker.output.continued import AnswerParser, ContinuedAnswer

ALL = [pytest.param(*case[1:3], id=case[0]) for case in (*CASES, *TAGGED_CASES)]


def fed(parser: AnswerParser, text: str, n: int = 1) -> list[ParsedPart]:
    """Feed a text in pieces of `n` characters."""
    return [parser.feed(text[i : i + n]) for i in range(0, len(text), n)]


def told(said: Sequence[ParsedPart]) -> PartialAnswer:
    """What a client has of an answer."""
    n_calls = max((call.index + 1 for one in said for call in one.tool_calls), default=0)
    n_arguments = [0] * n_calls
    for one in said:
        for call in one.tool_calls:
            n_arguments[call.index] += len(call.arguments)
    return PartialAnswer(
        n_text=sum(len(one.content) for one in said),
        n_reasoning=sum(len(one.reasoning) for one in said),
        n_arguments=tuple(n_arguments),
    )


def joined(said: Sequence[ParsedPart]) -> tuple[Answer, dict[int, int]]:
    """What it all comes to, and how often each call had a name."""
    calls: dict[int, list[str]] = {}
    n_named: dict[int, int] = {}
    for one in said:
        for call in one.tool_calls:
            found = calls.setdefault(call.index, ["", ""])
            found[0] += call.name
            found[1] += call.arguments
            n_named[call.index] = n_named.get(call.index, 0) + bool(call.name)
    content = "".join(one.content for one in said)
    reasoning = "".join(one.reasoning for one in said)
    named = tuple((name, arguments) for name, arguments in calls.values())
    return Answer(content, reasoning, named), n_named


@pytest.mark.slow
@pytest.mark.parametrize(("expected", "text"), ALL)
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_cut_anywhere_changes_nothing(expected: ExpectedParts, text: str, is_whole: bool) -> None:
    parser = ChatParser(expected, is_whole=is_whole)
    parts = fed(parser, text)
    whole = joined([*parts, parser.finish()])
    for n in range(0, len(text) + 1, 3):
        said = parts[:n]
        again = ContinuedAnswer(ChatParser(expected, is_whole=is_whole), told(said), text[:n])
        rest = [*fed(again, text[n:], n=8), again.finish()]
        assert joined([*said, *rest]) == whole, text[:n]


@pytest.mark.slow
@pytest.mark.parametrize(("expected", "text"), ALL)
def test_what_the_client_lacks_comes_first(expected: ExpectedParts, text: str) -> None:
    """The tokens were heard, and only a part of their text was handed on."""
    parser = ChatParser(expected)
    parts = fed(parser, text)
    whole = joined([*parts, parser.finish()])
    for n in range(0, len(text) + 1, 7):
        said = parts[: n // 2]
        again = ContinuedAnswer(ChatParser(expected), told(said), text[:n])
        rest = [*fed(again, text[n:], n=5), again.finish()]
        assert joined([*said, *rest]) == whole, text[:n]


def test_plain_text_is_not_taken_apart() -> None:
    again = ContinuedAnswer(None, PartialAnswer(n_text=3), "abcde")
    assert again.feed("f") == ParsedPart("def")
    assert again.feed("g") == ParsedPart("g")
    assert again.finish() == ParsedPart()


def test_more_than_the_tokens_say_is_left_out_of_what_follows() -> None:
    again = ContinuedAnswer(None, PartialAnswer(n_text=7), "abcde")
    assert again.feed("fgh") == ParsedPart("h")


def test_the_end_brings_what_nothing_else_brought() -> None:
    again = ContinuedAnswer(None, PartialAnswer(n_text=3), "abcde")
    assert again.finish() == ParsedPart("de")
