"""When a text is over."""

from typing import Any

import pytest

from protocol.wire.messages import Finish
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import read
from worker.output.generation import IndentCheck, TextGeneration


def generate(text: str, *, ms_each: float = 0.0, **params: Any) -> tuple[str, TextGeneration]:
    """Feed a text byte by byte until it ends."""
    generation = TextGeneration.start(read(SamplingParams(), params))
    shown = ""
    for i, byte in enumerate(text.encode()):
        shown += generation.accept(
            bytes([byte]), is_eog=False, is_full=False, elapsed_ms=i * ms_each
        )
        if generation.finish is not None:
            break
    return shown, generation


def test_n_predict_counts_tokens() -> None:
    shown, generation = generate("abcdef", n_predict=3)
    assert (shown, generation.finish) == ("abc", Finish.LIMIT)


def test_minus_one_has_no_limit() -> None:
    shown, generation = generate("abcdef", n_predict=-1)
    assert (shown, generation.finish) == ("abcdef", None)


def test_a_stop_string_wins_over_the_limit() -> None:
    shown, generation = generate("abcSTOP", n_predict=7, stop="STOP")
    assert (shown, generation.finish) == ("abc", Finish.WORD)


def test_text_held_for_a_stop_string_is_shown_at_the_limit() -> None:
    shown, generation = generate("abST", n_predict=4, stop=["STOP"])
    assert (shown, generation.finish) == ("abST", Finish.LIMIT)


def test_time_limit_waits_for_a_newline() -> None:
    shown, generation = generate("one two\nthree\nfour", ms_each=10, t_max_predict_ms=90)
    assert (shown, generation.finish) == ("one two\nthree\n", Finish.LIMIT)


def test_time_limit_without_newline_never_ends() -> None:
    shown, generation = generate("one two three", ms_each=100, t_max_predict_ms=10)
    assert generation.finish is None
    assert shown == "one two three"


@pytest.mark.parametrize(
    ("text", "n_indent", "shown"),
    [
        ("def f():\n    a\n    b\nc", 4, "def f():\n    a\n    b\n"),
        ("x\n  y\n z", 2, "x\n  y\n "),
        ("first\n\n    ok", 4, "first\n"),
        ("first\n    ok\n\n    ok", 4, "first\n    ok\n"),
        ("first\n    ok\n    ok", 4, "first\n    ok\n    ok"),
    ],
)
def test_a_line_with_less_indentation_ends_the_text(text: str, n_indent: int, shown: str) -> None:
    assert generate(text, n_indent=n_indent)[0] == shown


@pytest.mark.parametrize(
    ("tokens", "shown", "n_predicted"),
    [
        (["\n", "#", " Example"], "\n", 3),
        (["a\n", "    b", "\n", "c", "d"], "a\n    b\n", 4),
        (["a", "\n\n", "    b", "c"], "a\n", 4),
    ],
)
def test_indentation_is_checked_when_llama_server_does(
    tokens: list[str], shown: str, n_predicted: int
) -> None:
    """It begins a token after the first line break; what it cuts then is not shown before."""
    generation = TextGeneration.start(read(SamplingParams(), {"n_indent": 4}))
    text = ""
    for token in tokens[:n_predicted]:
        text += generation.accept(token.encode(), is_eog=False, is_full=False, elapsed_ms=0)
    assert (text, generation.n_predicted, generation.finish) == (shown, n_predicted, Finish.LIMIT)


def test_what_an_end_comes_before_is_not_cut() -> None:
    generation = TextGeneration.start(read(SamplingParams(), {"n_indent": 4, "n_predict": 2}))
    text = ""
    for token in ("\n", "#"):
        text += generation.accept(token.encode(), is_eog=False, is_full=False, elapsed_ms=0)
    assert text == "\n#"


@pytest.mark.parametrize("start", ["", "\n    ", "\n    x", "\n    x\n    "])
@pytest.mark.parametrize("token", ["word ", "     "])
def test_of_a_long_line_little_is_looked_at_again(start: str, token: str) -> None:
    check = IndentCheck(4)
    for text in (*start, *[token] * 500):
        assert check.take(text)
        check.shown(is_all=False)
    assert sum(len(value) for value in vars(check).values() if isinstance(value, str)) < 10


def test_full_context_is_a_truncated_limit() -> None:
    generation = TextGeneration.start(SamplingParams())
    assert generation.accept(b"x", is_eog=False, is_full=True, elapsed_ms=0) == "x"
    assert (generation.finish, generation.truncated) == (Finish.LIMIT, True)


def test_end_of_generation_wins_over_a_full_context() -> None:
    generation = TextGeneration.start(SamplingParams())
    generation.accept(b"", is_eog=True, is_full=True, elapsed_ms=0)
    assert (generation.finish, generation.truncated) == (Finish.EOS, False)
