"""Long texts in pieces that llama.cpp's tokenizer can take."""

import random
from pathlib import Path

import llama_cpp.llama_cpp as lib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.shallow import shallow_path
from worker.llama import special_texts, text_pieces, vocabulary
from worker.llama.special_texts import SpecialTexts
from worker.llama.text_pieces import MAX_DIGITS, MAX_PIECE, MAX_RUN, split
from worker.llama.vocabulary import LlamaVocabulary

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


WORDS = (
    "<|im_start|>",
    "<|im_end|>",
    "<repo_name>",
    "<|im",
    "|>",
    "<",
    "user",
    " ",
    "\n",
    "é",
    "7",
)


def test_a_cut_comes_after_a_token_that_is_found_for_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(special_texts, "MAX_SPECIAL", 2)
    texts = SpecialTexts((b"<a>", b"<b>", b"b><", b"><a"))

    def cut(text: bytes) -> int:
        return texts.cut(text, 0, len(text))

    assert cut(b"x<a>y<a>z<a>w") == len(b"x<a>y<a>")
    assert cut(b"x<a>y<a> <a>w") == len(b"x<a>y<a> <a>"), "white space may belong to the token"
    assert cut(b"x<a>y<a><a>w<a>.") == len(b"x<a>y<a><a>w<a>"), "`><a` reaches over the first"
    assert cut(b"x<a>y<b><a>zz") == len(b"x<a>y<b><a>zz"), "`b><` may be found instead"
    assert cut(b"x<a>y") == len(b"x<a>y")
    assert SpecialTexts(()).cut(b"x" * 9, 0, 9) == 9


@pytest.mark.model
@pytest.mark.parametrize("parse_special", [True, False])
def test_pieces_give_the_tokens_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, parse_special: bool
) -> None:
    vocab = _vocabulary()
    chance = random.Random(1)
    for _ in range(300):
        text = "".join(chance.choices(WORDS, k=chance.randint(1, 60)))
        whole = vocab.tokenize(text, add_special=True, parse_special=parse_special)
        with monkeypatch.context() as patched:
            patched.setattr(vocabulary, "_SHORT_TEXT", 0)
            patched.setattr(special_texts, "MAX_SPECIAL", 2)
            patched.setattr(text_pieces, "MAX_PIECE", 100_000)
            cut = vocab.tokenize(text, add_special=True, parse_special=parse_special)
        assert cut == whole, text


@pytest.mark.model
def test_no_call_gets_more_special_tokens_than_it_can_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vocab, mark, found = _vocabulary(), "<|im_start|>", list[int]()
    plain = LlamaVocabulary._tokenize

    def counted(self: LlamaVocabulary, data: bytes, *flags: bool) -> list[int]:
        found.append(data.count(mark.encode()))
        return plain(self, data, *flags)

    monkeypatch.setattr(LlamaVocabulary, "_tokenize", counted)
    tokens = vocab.tokenize(mark * 21_000, add_special=False, parse_special=True)
    assert tokens == plain(vocab, mark.encode(), False, True) * 21_000
    assert max(found) <= special_texts.MAX_SPECIAL


def _vocabulary() -> LlamaVocabulary:
    params = lib.llama_model_default_params()
    params.vocab_only = True
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(str(Path(shallow_path())).encode(), params)
    return LlamaVocabulary(lib.llama_model_get_vocab(model))
