"""Whole characters and no stop strings, however the bytes arrive."""

from hypothesis import given
from hypothesis import strategies as st

from worker.output.generation import TextStream


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut bytes at the given places."""
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@given(text=st.text(max_size=50), cuts=st.lists(st.integers(0, 400), max_size=20))
def test_text_survives_any_cut(text: str, cuts: list[int]) -> None:
    stream = TextStream([])
    fed = "".join(stream.feed(piece) for piece in pieces(text.encode(), cuts))
    assert fed + stream.flush() == text


@given(
    text=st.text(alphabet="abS", max_size=40),
    stops=st.lists(st.text(alphabet="abS", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 100), max_size=20),
)
def test_nothing_from_the_first_stop_on_is_shown(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    stream = TextStream(stops)
    shown = fed = ""
    expected = text
    for piece in pieces(text.encode(), cuts):
        shown += stream.feed(piece)
        fed += piece.decode()
        starts = [fed.find(stop) for stop in stops if stop in fed]
        assert bool(stream.stopping_word) == bool(starts)
        if starts:
            expected = fed[: min(starts)]
            break
    assert shown + stream.flush() == expected


def test_half_a_character_is_held_back_and_dropped_at_the_end() -> None:
    stream = TextStream([])
    assert stream.feed("é".encode()[:1]) == ""
    assert stream.feed("é".encode()[1:]) == "é"
    assert stream.feed("😀".encode()[:3]) == ""
    assert stream.flush() == ""


def test_invalid_bytes_become_replacement_characters() -> None:
    stream = TextStream([])
    assert stream.feed(b"a\xffb") == "a\ufffdb"


def test_a_beginning_that_comes_to_nothing_is_shown() -> None:
    stream = TextStream(["STOP"])
    assert stream.feed(b"x ST") == "x "
    assert stream.feed(b"AR") == "STAR"
    assert stream.feed(b"S") == ""
    assert stream.flush() == "S"
