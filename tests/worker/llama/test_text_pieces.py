"""Long texts in pieces that llama.cpp's tokenizer can take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.llama import text_pieces
from worker.llama.text_pieces import MAX_DIGITS, MAX_PIECE, MAX_RUN, split

PROSE = "The quick brown fox, aged 7, jumps over the lazy dog.\nAnd again — déjà vu.\n" * 9000


def cut(text: str, *, adds_space: bool = False, has_regex: bool = True) -> list[str]:
    pieces = list(split(text.encode(), adds_space=adds_space, has_regex=has_regex))
    assert all(len(piece) <= MAX_PIECE for piece in pieces)
    return [piece.decode() for piece in pieces]


def test_a_short_text_is_one_piece() -> None:
    assert cut("some words") == ["some words"]


def test_a_long_text_is_cut_between_lines() -> None:
    pieces = cut(PROSE)
    assert "".join(pieces) == PROSE
    assert len(pieces) == 3
    assert all(piece.endswith(".\n") and piece[0] in "TA" for piece in pieces)


def test_it_is_cut_before_a_space_where_the_tokenizer_adds_one() -> None:
    pieces = cut(PROSE, adds_space=True)
    assert "".join(pieces) == PROSE
    assert all(piece[0] == " " and not piece[1].isspace() for piece in pieces[1:])


@pytest.mark.parametrize(
    ("char", "limit"), [("x", MAX_RUN), ("7", MAX_DIGITS), (" ", MAX_RUN), ("!", MAX_RUN)]
)
def test_a_run_that_no_text_has_is_cut(char: str, limit: int) -> None:
    text = "before " + char * (3 * limit) + "-after"
    pieces = cut(text)
    assert "".join(pieces) == text
    assert max(piece.count(char) for piece in pieces) == limit
    assert len(pieces) >= 3


def test_runs_are_left_whole_where_nothing_recurses_over_them() -> None:
    assert cut("x" * (2 * MAX_RUN), has_regex=False) == ["x" * (2 * MAX_RUN)]


@pytest.mark.parametrize("char", ["é", "一", "😀"])
def test_no_character_is_cut(char: str) -> None:
    text = "a" + char * MAX_RUN
    assert "".join(cut(text)) == text


@given(st.text(alphabet="ab1 \n.é", max_size=300), st.booleans(), st.booleans())
def test_nothing_is_lost(text: str, adds_space: bool, has_regex: bool) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(text_pieces, "MAX_PIECE", 20)
        data = text.encode()
        pieces = list(split(data, adds_space=adds_space, has_regex=has_regex))
    assert b"".join(pieces) == data
    assert all(0 < len(piece) <= 20 and piece.decode() for piece in pieces)
