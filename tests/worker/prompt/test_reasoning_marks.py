"""How templates write reasoning: what rendering shows, and what stands in the table."""

import pytest

from protocol.wire.facts import ModelCard
from worker.engine.cache.prefix import common_prefix
from worker.output.formats.reasoning_marks import (
    REASONING_ROWS,
    ReasoningMarks,
    ReasoningRow,
    listed_reasoning_marks,
)
from worker.prompt.chat.reasoning_detection import find_reasoning_marks
from worker.prompt.chat.segments import difference, split_markers
from worker.prompt.chat.template import ChatTemplate

CARD = ModelCard(name="m", path="m", n_slots=1, n_ctx=512, n_ctx_total=512)
ANSWERS = "{% for m in messages %}[{{ m.role }}]{{ THOUGHT }}{{ m.content }}\n{% endfor %}"
ASKS = "{% if add_generation_prompt %}[assistant]{{ PREFIX }}{% endif %}"


def found(thought: str = "''", answer_prefix: str = "''") -> ReasoningMarks | None:
    """Look at a template that writes reasoning and the beginning of an answer so."""
    source = (ANSWERS + ASKS).replace("THOUGHT", thought).replace("PREFIX", answer_prefix)
    return find_reasoning_marks(ChatTemplate(source, CARD))


def around(open_: str, close: str) -> str:
    """An expression that writes reasoning, if there are any, between two marks."""
    return f"'{open_}' + m.reasoning_content + '{close}' if m.reasoning_content else ''"


@pytest.mark.parametrize(
    ("open_", "close", "after_open", "after_close"),
    [
        (r"<think>\n", r"\n</think>\n\n", "\n", "\n\n"),  # Qwen3
        ("<think>", r"</think>\n", "", "\n"),  # GLM 4.6
        ("<think>", "</think>", "", ""),  # DeepSeek V3.1
        ("[T] ", " [/T]", " ", ""),
    ],
)
def test_earlier_reasoning_shows_the_marks_and_their_space(
    open_: str, close: str, after_open: str, after_close: str
) -> None:
    row = found(around(open_, close))
    assert row is not None
    assert (row.after_open, row.after_close) == (after_open, after_close)
    assert row.written == tuple(text.replace("\\n", "\n") for text in (open_, close))
    assert row.open == open_.replace("\\n", "").strip() and row.skips_lead


def test_thinking_that_is_turned_off_shows_the_marks() -> None:
    row = found(answer_prefix=r"'<think>\n' if enable_thinking else '<think>\n</think>'")
    assert row is not None and (row.open, row.close) == ("<think>", "</think>")


def test_an_end_without_a_beginning_means_that_reasoning_begins_at_once() -> None:
    row = found("m.reasoning_content + '</think>' if m.reasoning_content else ''")
    assert row is not None and row.close == "</think>"


def test_templates_without_reasoning_have_none() -> None:
    assert found() is None


def test_a_template_that_cannot_be_rendered_has_none() -> None:
    assert find_reasoning_marks(ChatTemplate("{{ raise_exception('no') }}", CARD)) is None


@pytest.mark.parametrize("row", REASONING_ROWS, ids=lambda row: row.marks[0])
def test_rows_are_found_by_their_marks(row: ReasoningRow) -> None:
    first = REASONING_ROWS.index(row)
    above = {
        mark for one in REASONING_ROWS[:first] if one.marks == row.marks for mark in one.absent
    }
    text = " ".join([*row.marks, *above])
    assert listed_reasoning_marks(text) is row.reasoning_marks


def test_a_mark_is_not_cut_by_a_difference() -> None:
    assert split_markers("a<b>c[d] e") == ["a", "<b>", "c", "[d]", " e"]
    assert difference("x<a>y<end>", "x<ab>y<end>") == ("<a>", "<ab>")
    assert difference("one two<end>", "one three<end>") == ("wo", "hree")
    assert difference("ab", "abc") == ("", "c") and difference("abc", "ab") == ("c", "")


@pytest.mark.parametrize("n", [0, 1, 1023, 1024, 1025, 3000])
def test_the_common_beginning_of_long_prompts_is_found(n: int) -> None:
    for a, b in (("", ""), ("x", ""), ("x", "y"), ("x" * 2000, "y" * 2000), ("xa", "xb")):
        expected = n + (a[:1] == b[:1] and bool(a))
        assert common_prefix("-" * n + a, "-" * n + b) == expected
