"""Answers as models write them, taken apart: every format, cut in every way."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.chat_cases import (
    BY_NAME,
    CALL,
    CASES,
    HERMES,
    NO_CALL,
    THINK,
    Answer,
    expect,
)
from tests.worker.tagged_cases import (
    TAGGED_CASES,
    TAGGED_NO_CALL,
    TYPES,
    expect_tagged,
    qwen,
)
from worker.output.chat_parser import reasoning_reader
from worker.output.chat_parser.answer_markers import answer_markers
from worker.output.chat_parser.json_walk import unquote
from worker.output.chat_parser.markers import find
from worker.output.chat_parser.parser import ChatParser, ExpectedParts
from worker.output.chat_parser.sink import ParsedPart
from worker.output.formats.choice import FORMATS, GENERIC
from worker.output.formats.tool_format import ANY, KIND, NAME


def parse(expected: ExpectedParts, parts: Sequence[str]) -> Answer:
    """Feed an answer piece by piece, and check that calls come as clients read them."""
    parser = ChatParser(expected)
    content = reasoning = ""
    calls: list[list[str]] = []
    ids = set()
    for parsed in (*(parser.feed(part) for part in parts), parser.finish()):
        content += parsed.content
        reasoning += parsed.reasoning
        for piece in parsed.tool_calls:
            if piece.id:
                assert piece.index == len(calls) and piece.name
                ids.add(piece.id)
                calls.append([piece.name, ""])
            else:
                assert piece.index == len(calls) - 1 and not piece.name
            calls[piece.index][1] += piece.arguments
    assert len(ids) == len(calls)
    return Answer(content, reasoning, tuple((name, text) for name, text in calls))


ALL = [*CASES, *TAGGED_CASES]
IDS = [case[0] for case in ALL]


@pytest.mark.parametrize(("expected", "text", "answer"), [case[1:] for case in ALL], ids=IDS)
def test_an_answer_is_taken_apart(expected: ExpectedParts, text: str, answer: Answer) -> None:
    assert parse(expected, [text]) == answer
    assert parse(expected, list(text)) == answer


@pytest.mark.slow
@pytest.mark.parametrize(("expected", "text", "answer"), [case[1:] for case in ALL], ids=IDS)
def test_it_does_not_matter_where_an_answer_is_cut(
    expected: ExpectedParts, text: str, answer: Answer
) -> None:
    for i in range(len(text)):
        assert parse(expected, [text[:i], text[i:]]) == answer, text[:i]


@pytest.mark.parametrize(("name", "text"), [*NO_CALL, *TAGGED_NO_CALL])
def test_what_only_looked_like_a_call_is_content(name: str, text: str) -> None:
    for parts in ([text], list(text)):
        assert parse(expect(name), parts) == Answer(text, "", ())


def test_arguments_stop_where_the_limit_cut_them() -> None:
    answer = parse(expect("hermes"), [f"{HERMES}\n", '<tool_call>\n{"name": "python", "argum'])
    assert answer.calls == CALL
    answer = parse(expect("hermes"), ['<tool_call>{"name": "python", "arguments": {"a": "b'])
    assert answer == Answer("", "", (("python", '{"a": "b'),))


def test_promised_arguments_that_break_go_on_to_the_end_of_the_call() -> None:
    text = '<tool_call>{"name": "python", "arguments": {"a": oops}}</tool_call> then'
    for parts in ([text], list(text)):
        assert parse(expect("hermes"), parts) == Answer(" then", "", (("python", '{"a": oops}}'),))


def test_half_of_the_next_call_is_not_shown() -> None:
    for rest in ("\n<tool_c", '\n<tool_call>\n{"name": "pyth'):
        assert parse(expect("hermes"), [HERMES, rest]) == Answer("", "", CALL)


def test_the_first_piece_of_a_call_begins_its_arguments() -> None:
    parser = ChatParser(expect("hermes"))
    pieces = [
        (piece.name, piece.arguments) for char in HERMES for piece in parser.feed(char).tool_calls
    ]
    assert pieces[0] == ("special_function", "{")
    assert [text for _, text in pieces[1:]] == list('"arg1": 1}')


@pytest.mark.parametrize("name", ["mistral", "hermes"])
def test_ids_are_as_long_as_the_template_wants_them(name: str) -> None:
    parser = ChatParser(expect(name))
    opener = BY_NAME[name].openers[0][0]
    text = f'{opener}[{{"name": "python", "arguments": {{}}}}]'
    (piece,) = parser.feed(text).tool_calls
    assert len(piece.id) == BY_NAME[name].id_length and piece.id.isalnum()


def test_what_the_client_began_is_repeated_in_whole_answers_only() -> None:
    expected = ExpectedParts(
        reasoning_marks=THINK, answer_prefix="<think>\na\n</think>\n\nHello", is_continued=True
    )
    parsed = ChatParser(expected, is_whole=True).feed(" world")
    assert (parsed.reasoning, parsed.content) == ("a\n", "Hello world")
    assert ChatParser(expected).feed(" world").content == " world"


@pytest.mark.parametrize("text", ["", " to=functions.special", "<|channel|>comm"])
def test_the_prompts_own_end_is_no_part_of_an_answer_that_was_cut(text: str) -> None:
    expected = expect("gpt-oss", thinks=True, answer_prefix="<|start|>assistant")
    assert parse(expected, list(text)) == Answer(text, "", ())
    assert parse(expect("functionary-v3.2", answer_prefix=">>>"), list("al")) == Answer(
        "al", "", ()
    )


def test_what_nobody_asked_to_continue_is_repeated_in_streams_too() -> None:
    answer_prefix = "<think>\na\n</think>\n\nHello"
    expected = ExpectedParts(
        reasoning_marks=THINK, answer_prefix=answer_prefix, is_continued=True, repeats_prefix=True
    )
    parsed = ChatParser(expected).feed(" world")
    assert (parsed.reasoning, parsed.content) == ("a\n", "Hello world")


@pytest.mark.parametrize("half", ["<", "</thi", "</think"])
def test_half_of_the_end_mark_is_no_reasoning(half: str) -> None:
    expected = ExpectedParts(reasoning_marks=THINK, answer_prefix="<think>\n")
    for parts in (["abc", half], list(f"abc{half}")):
        assert parse(expected, parts) == Answer("", "abc", ())


def test_half_of_an_end_mark_alone_is_all_of_a_whole_answer() -> None:
    expected = ExpectedParts(reasoning_marks=THINK, answer_prefix="<think>\n")
    parser = ChatParser(expected, is_whole=True)
    assert not parser.feed("<")
    assert parser.finish() == ParsedPart("<")


MARKERS = [
    marker
    for row in (*FORMATS, GENERIC)
    for marker in (*(part for opener in row.openers for part in opener), *row.closers, *row.dropped)
]
PIECES = st.sampled_from(
    [
        *MARKERS,
        *('{"name": "python", "arguments": {}}', '{"name": "', "python", '", "arguments": '),
        *('{"a": 1}', "{", "}", "[", "]", ",", " ", "\n", "a", "<", '"', "\\", "é", ">>>", "all\n"),
        *("<parameter=", ">", "</parameter>", "\n</parameter>\n", "</function>", "<arg_key>a"),
        *("</arg_key>", "<arg_value>", "</arg_value>", '<parameter name="a">', "</invoke>", "opt"),
        *(qwen("python", opt="1"), qwen("special_function", arg1="1")[:-14]),
        *('code:<|"|>', '<|"|>', '"<|sep|>', '<|open|>argument key="code" type="', "string"),
        *(
            "code=",
            "'",
            "=[{'a': None",
            "]}",
            "True",
            ")",
            "(",
            ", python(",
            '<atem:parameter name="',
        ),
        *("]<]minimax[>[", "]<]minimax[>[<code>", "]<]minimax[>[</code>", "]<]minimax[>[</invoke>"),
        *("<think>", "</think>", '{"response": "', '{"tool_call": ', "parameters"),
    ]
)


@given(
    name=st.sampled_from(sorted(BY_NAME)),
    thinks=st.booleans(),
    pieces=st.lists(PIECES, max_size=12),
    cuts=st.lists(st.integers(0, 300), max_size=6),
)
def test_any_text_gives_the_same_however_it_is_cut(
    name: str, thinks: bool, pieces: list[str], cuts: list[int]
) -> None:
    text = "".join(pieces)
    expected = replace(expect(name, thinks=thinks), types=TYPES)
    whole = parse(expected, [text])
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert parse(expected, parts) == whole
    assert parse(expected, list(text)) == whole


@cache
def own_pieces(name: str) -> st.SearchStrategy[list[str]]:
    """Texts of one format: whole openers, tags around arguments, ends, and anything."""
    row = BY_NAME[name]
    written = {NAME: "python", ANY: "0", KIND: "json"}
    openers = ["".join(written.get(part, part) for part in parts) for parts in row.openers]
    tags = [*openers, *row.closers, *row.dropped, row.end, "".join(row.later[:1])]
    if row.tagged:
        tagged = row.tagged
        heads = [tagged.key_open + key + tagged.key_close for key in ("code", "any", "opt", "flag")]
        kinds = tagged.kinds or ("",)
        tags += [head + kind + tagged.value_open for head in heads for kind in kinds]
        tags += [tagged.value_close, f"\n{tagged.value_close}\n", tagged.close]
    if row.nested:
        tags += [row.nested.close, f"{row.nested.mark}<item>", f"{row.nested.mark}</item>"]
    if row.notation:
        tags += [f"code{row.notation.separator}", row.notation.quotes[0], row.notation.close]
    call = '{"name": "python", "arguments": {"a": "}</think>{", "b": [{"c": "\\ud83d\\ude00"}]}}'
    keyed = call.replace('"name"', f'"{row.name_key}"').replace("arguments", row.arguments_key)
    texts = [*filter(None, tags), keyed, '{"a": "</think>"}', "[1", "😀"]
    return st.lists(st.sampled_from(texts) | PIECES, max_size=10)


@pytest.mark.parametrize("name", sorted(BY_NAME))
@given(data=st.data(), thinks=st.booleans())
def test_a_cut_answer_of_a_format_gives_the_same_however_it_comes(
    name: str, data: st.DataObject, thinks: bool
) -> None:
    text = "".join(data.draw(own_pieces(name)))
    text = text[: data.draw(st.integers(0, len(text)))]
    at = data.draw(st.integers(0, len(text)))
    expected = replace(expect(name, thinks=thinks), types=TYPES)
    whole = parse(expected, [text])
    assert parse(expected, [text[:at], text[at:]]) == whole
    assert parse(expected, list(text)) == whole


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(arguments=st.dictionaries(st.text(), JSON, max_size=4), ascii_only=st.booleans())
@pytest.mark.slow
def test_arguments_come_through_as_they_were_written(
    arguments: dict[str, Any], ascii_only: bool
) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii_only)
    text = f'<tool_call>{{"name": "python", "arguments": {written}}}</tool_call>'
    answer = parse(expect("hermes"), list(text))
    assert answer == Answer("", "", (("python", written),))


@pytest.mark.parametrize("begin", ["", "<think>", "words", HERMES])
def test_endless_space_is_passed_on(begin: str) -> None:
    expected = expect("hermes", thinks=True)
    parser = ChatParser(expected)
    parser.feed(begin)
    n_out = sum(
        len(parsed.content + parsed.reasoning)
        for parsed in (parser.feed("\n") for _ in range(1000))
    )
    # Before the answer it is dropped, and reasoning of nothing else is none.
    assert n_out > 900 or begin in ("", "<think>")
    text = f"{begin}{' ' * 200}{HERMES}"
    assert parse(expected, list(text)) == parse(expected, [text])


def test_space_at_the_beginning_of_reasoning_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 32,000 line ends, which a grammar can demand, each took 1 ms on the link's thread."""
    n_seen = 0

    def counted(markers: Any, text: str) -> Any:
        nonlocal n_seen
        n_seen += len(text)
        return find(markers, text)

    monkeypatch.setattr(reasoning_reader, "find", counted)
    parser = ChatParser(expect(thinks=True))
    said = [parser.feed(part).reasoning for part in ("<think>", *["\n"] * 1000, "a", "b</think>")]
    assert "".join(said).strip() == "ab" and n_seen < 3000


M3 = "]<]minimax[>["
QWEN_PYTHON = "<tool_call>\n<function=python>\n"


@pytest.mark.parametrize(
    ("name", "begin", "unit"),
    [
        ("qwen3-coder", f"{QWEN_PYTHON}<parameter=any>\n{{", "text "),
        ("qwen3-coder", f"{QWEN_PYTHON}<parameter=flag>\n", "true"),
        ("qwen3-coder", QWEN_PYTHON, "   "),
        ("glm-4.5", "<tool_call>python\n<arg_key>any</arg_key>", "   "),
        ("minimax-m3", f'{M3}<tool_call>\n{M3}<invoke name="python">', "   "),
        ("minimax-m3", f'{M3}<tool_call>\n{M3}<invoke name="python">{M3}<any>', "text "),
    ],
)
def test_what_waits_for_its_end_is_looked_at_once(name: str, begin: str, unit: str) -> None:
    """All of it for each character took 1 ms a token on the link's thread after 80,000."""
    parser = ChatParser(expect_tagged(name))
    parser.feed(begin)
    for _ in range(200):
        parser.feed(unit)
    assert parser._reader is not None
    assert len(getattr(parser._reader, "_text")) < 40  # noqa: B009  which reader, mypy cannot know


def test_halves_of_surrogate_pairs_are_decoded_as_they_come() -> None:
    half, pair = "\\ud83d", "\\ud83d\\ude00"
    parser = ChatParser(expect("generic"))
    parser.feed('{"response": "')
    contents = [parser.feed(half).content for _ in range(5)]
    assert contents == ["", *["\ufffd"] * 4]
    for inner in (half * 3, half * 2 + pair, rf"\\{half}", rf"\\\{half[1:]}a", f"{half}{half}x"):
        text = f'{{"response": "{inner}"}}'
        whole = unquote(f'"{inner}"')
        assert parse(expect("generic"), list(text)) == Answer(whole, "", ()), inner


@given(code=st.text(), name=st.sampled_from(["qwen3.5", "qwen3-coder"]))
def test_strings_in_tags_come_through_as_they_were_written(code: str, name: str) -> None:
    if "\n</parameter>\n" in f"\n{code}\n":
        return
    answer = parse(expect_tagged(name), list(qwen("python", code=code)))
    ((_, arguments),) = answer.calls
    assert json.loads(arguments) == {"code": code}
    assert not answer.content


def test_a_string_in_tags_goes_out_as_it_comes() -> None:
    parser = ChatParser(expect_tagged("qwen3.5"))
    parser.feed("<tool_call>\n<function=python>\n<parameter=code>\n")
    pieces = [p.arguments for char in 'a"\n<b' for p in parser.feed(char).tool_calls]
    assert pieces == ['"a', '\\"', "\\n<b"]


def test_markers_of_the_same_names_are_made_once() -> None:
    names = frozenset(f"tool{i}" for i in range(128))
    made = answer_markers(None, names, None, ())
    assert answer_markers(None, frozenset(sorted(names)), None, ()) is made


def test_markers_of_long_names_are_not_kept() -> None:
    names = frozenset(["a" * 10_000])
    assert answer_markers(None, names, None, ()) is not answer_markers(None, names, None, ())
