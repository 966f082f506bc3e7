"""Markers are found without comparing each tool, and are those that comparing each would find."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.counted import lines_of
from tests.worker.chat_cases import BY_NAME, expect
from worker.output.chat_parser.markers import (
    MAX_SPACE,
    Marker,
    MarkerKind,
    MarkerMatch,
    MarkerSet,
    _part_end,
    openers,
)
from worker.output.chat_parser.parser import ChatParser
from worker.output.formats.tool_format import ANY, KIND

MANY = frozenset(f"{i}_tool" for i in range(128))


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("gpt-oss", "a few <words> to read"),
        ("gpt-oss", "<|channel|>commentary to=functions."),
        ("functionary-v3.2", ">>>"),
        ("mistral-call-id", "[TOOL_CALLS]"),
        ("muse-glimmer", "9"),
    ],
)
def test_a_token_is_not_compared_with_each_tool(name: str, begin: str) -> None:
    """Of 128 tools, each token of space after an opener took 7 ms on the link's thread."""
    parser = ChatParser(replace(expect(name), names=MANY))
    parser.feed(f"words {begin}")
    for token in (*["  "] * 20, *"9_tool", "x"):
        assert lines_of(lambda text=token: parser.feed(text)) < 400  # type: ignore[misc]


def naive_match(markers: Sequence[Marker], text: str, at: int) -> tuple[Marker, int] | MarkerMatch:
    """Compare the markers one after another, and skip space one character at a time."""
    for marker in markers:
        end: int | MarkerMatch = at
        for i, part in enumerate(marker.parts):
            assert isinstance(end, int)
            limit = min(len(text), end + MAX_SPACE) if i else end
            while end < limit and text[end].isspace() and not text.startswith(part, end):
                end += 1
            end = _part_end(part, text, end)
            if isinstance(end, MarkerMatch):
                break
        if end is MarkerMatch.PARTIAL:
            return end
        if isinstance(end, int):
            return marker, end
    return MarkerMatch.NONE


NAMES = st.frozensets(
    st.sampled_from(["a", "ab", "abc", "b", " ", "  a", "[ARGS]", "[", ">>>", "a\u3000b"]),
    max_size=6,
)
PARTS = st.sampled_from([ANY, KIND, "a", "ab", "b", "[", "\n", "\na", " ", ""])
MARKERS = st.lists(
    st.builds(
        lambda first, parts: Marker(MarkerKind.CALL, (first, *parts)),
        st.sampled_from(["", "a", "ab", ">", ">>>", "["]),
        st.lists(PARTS, max_size=3),
    ),
    max_size=6,
)


@given(
    name=st.sampled_from(sorted(BY_NAME)),
    names=NAMES,
    before=MARKERS,
    after=MARKERS,
    data=st.data(),
)
def test_the_marker_is_the_first_that_matches(
    name: str, names: frozenset[str], before: list[Marker], after: list[Marker], data: st.DataObject
) -> None:
    markers = [*before, *openers(BY_NAME[name], names), *after]
    parts = sorted({part for marker in markers for part in marker.parts} - {ANY, KIND, ""})
    piece = st.sampled_from([*parts, "a", " ", "\n", " " * 63, "json"])
    text = "".join(data.draw(st.lists(piece, min_size=1, max_size=7)))
    text = text[: data.draw(st.integers(1, len(text)))]  # as if more were to come
    at = data.draw(st.integers(0, len(text) - 1))
    assert MarkerSet(markers).match(text, at) == naive_match(markers, text, at)
