"""Events come out whole, wherever the body is cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bench.client.sse import SseParser

ENDS = ("\n", "\r\n", "\r")
LINES = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=12)


def events(payloads: list[str], end: str) -> bytes:
    written = ""
    for payload in payloads:
        written += "".join(f"data: {line}{end}" for line in payload.split("\n")) + end
    return written.encode()


@given(
    payloads=st.lists(st.lists(LINES, min_size=1, max_size=3).map("\n".join), max_size=6),
    end=st.sampled_from(ENDS),
    data=st.data(),
)
def test_any_cut_gives_the_same_events(payloads: list[str], end: str, data: st.DataObject) -> None:
    body = events(payloads, end)
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=8).map(sorted))
    parser = SseParser()
    found = [
        payload
        for low, high in itertools.pairwise([0, *cuts, len(body)])
        for payload in parser.feed(body[low:high])
    ]
    # A lone carriage return at the very end may still be followed by a line feed.
    found += parser.feed(b"\n")
    assert found == [payload.encode() for payload in payloads]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b": ping\n\ndata: a\n\n", [b"a"]),
        (b"event: x\ndata: a\nid: 3\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:\n\n", [b""]),
        (b"\n\n\n\ndata: a\n\n", [b"a"]),
        (b"data: a\n", []),
    ],
)
def test_comments_and_other_fields_are_no_data(body: bytes, expected: list[bytes]) -> None:
    assert SseParser().feed(body) == expected
