"""Budgets of reasoning, on tokens that are single bytes: what is forced, when, and what is held."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.messages import Done
from protocol.wire.sampling import SamplingParams
from tests.worker.served import Served
from worker.llama.sampling.reasoning import ReasoningTracker, open_reasoning_tracker

PIECES = [bytes([i]) for i in range(256)]


def tokenize(text: str) -> Sequence[int]:
    """A token a byte."""
    return list(text.encode())


def opened(*, is_lazy: bool = False, **fields: object) -> ReasoningTracker | None:
    """Open a watch over <t> and </t>."""
    marks = {"reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tags": ("</t>", "[")}
    params = SamplingParams(**{**marks, **fields})  # type: ignore[arg-type]
    return open_reasoning_tracker(params, PIECES, tokenize, is_lazy=is_lazy)


def told(tracker: ReasoningTracker | None, text: str) -> str:
    """Let a model write a text: return what comes of it, what must come included."""
    assert tracker is not None
    out = b""
    todo = text.encode()
    while todo or tracker.forced is not None:
        token = tracker.forced
        if token is None:
            token, todo = todo[0], todo[1:]
        out += bytes([token])
        tracker.accept(token)
    return out.decode()


def test_reasoning_ends_when_its_budget_is_used_up() -> None:
    assert told(opened(reasoning_budget_tokens=3), "a<t>bcdefg") == "a<t>bcd</t>efg"


def test_a_message_comes_before_the_mark() -> None:
    tracker = opened(reasoning_budget_tokens=1, reasoning_budget_message="Enough.")
    assert told(tracker, "<t>bc") == "<t>bEnough.</t>c"


def test_no_budget_ends_them_at_once() -> None:
    assert told(opened(reasoning_budget_tokens=0), "<t>bc") == "<t></t>bc"


@pytest.mark.parametrize("end", ["</t>", "["])
def test_reasoning_that_ends_by_itself_is_left_alone(end: str) -> None:
    text = f"<t>b{end}cdefghi"
    assert told(opened(reasoning_budget_tokens=6), text) == text


def test_each_block_of_reasoning_has_a_budget_of_its_own() -> None:
    text = told(opened(reasoning_budget_tokens=2), "<t>b</t><t>cd")
    assert text == "<t>b<</t>/t><t>cd</t>"
    text = told(opened(reasoning_budget_tokens=5), "<t>b</t><t>c</t>d")
    assert text == "<t>b</t><t>c</t>d"


def test_a_character_is_not_cut() -> None:
    assert told(opened(reasoning_budget_tokens=2), "<t>b\u00e9c") == "<t>b\u00e9c</t>"


def test_what_the_prompt_began_counts() -> None:
    tracker = opened(reasoning_budget_tokens=2, generation_prompt="[assistant]<t>\n")
    assert tracker is not None and tracker.is_open
    assert told(tracker, "bc") == "b</t>c"


def test_a_prompt_longer_than_the_budget_takes_nothing_of_the_mark() -> None:
    tracker = opened(reasoning_budget_tokens=2, generation_prompt="<t>Steps:")
    assert told(tracker, "bc") == "</t>bc"
    tracker = opened(reasoning_budget_tokens=0, generation_prompt="<t></t>")
    assert told(tracker, "bc") == "bc"


def test_the_end_can_be_asked_for() -> None:
    tracker = opened(reasoning_control=True, generation_prompt="<t>")
    assert tracker is not None and tracker.end() and not tracker.end()
    assert told(tracker, "bc") == "</t>bc"
    assert not tracker.end()


def test_nothing_is_watched_where_nothing_depends_on_it() -> None:
    assert opened() is None
    assert opened(reasoning_budget_tokens=5, reasoning_budget_start_tag="") is None
    assert opened(is_lazy=True) is not None


def test_a_thought_is_open_until_a_mark_has_come() -> None:
    tracker = opened(is_lazy=True)
    assert tracker is not None
    states = ""
    for token in b"a<t>b</t>c<t>[":
        tracker.accept(token)
        states += "+" if tracker.is_open else "-"
    assert states == "---+++++----+-"
    assert tracker.ended_with == "["


@given(
    words=st.text("ab<t>/[\u00e9", max_size=40),
    budget=st.integers(0, 12),
)
def test_no_thought_is_longer_than_its_budget(words: str, budget: int) -> None:
    text = told(opened(reasoning_budget_tokens=budget), words)
    rest = text
    while "<t>" in rest:
        thought = rest.partition("<t>")[2]
        ends = [at for at in (thought.find("</t>"), thought.find("[")) if at >= 0]
        if not ends:
            assert len(thought.encode()) <= budget + 1
            return
        # The mark itself may have started within the budget, and a character is not cut.
        assert len(thought[: min(ends)].encode()) <= budget + 1
        rest = thought[min(ends) + 1 :]


# ---- on the real model ---------------------------------------------------------------------------

COUNTING = "one two three one two three one two three one two"
"""The model goes on with ` three one two`, over and over."""


@pytest.mark.model
def test_the_model_is_made_to_end_its_reasoning(fluent: Served) -> None:
    marks = {"reasoning_budget_start_tag": " three", "reasoning_budget_end_tags": ["END"]}
    answer = fluent.ask(COUNTING, n_predict=8, reasoning_budget_tokens=2, **marks)
    assert answer.text.startswith(" three one twoEND")
    probable = fluent.ask(COUNTING, n_predict=8, reasoning_budget_tokens=2, n_probs=1, **marks)
    assert probable.text == answer.text and len(probable.probs) == len(answer.tokens)


@pytest.mark.model
def test_no_grammar_begins_inside_a_thought(fluent: Served) -> None:
    free = fluent.ask(COUNTING, n_predict=12).text
    lazy: dict[str, Any] = {"triggers": (" one",), "grammar": 'root ::= " one" " done"'}
    marks = {"reasoning_budget_start_tag": "three", "reasoning_budget_end_tags": [" two"]}
    inside = fluent.ask(COUNTING, n_predict=12, generation_prompt="three", **lazy, **marks)
    assert inside.text.startswith(" three one two three") and inside.text == free
    ended = fluent.ask(
        COUNTING, n_predict=12, **lazy, **marks | {"reasoning_budget_start_tag": "x"}
    )
    assert ended.text == " three one done"


@pytest.mark.model
def test_the_end_of_a_thought_may_begin_a_call(fluent: Served) -> None:
    lazy: dict[str, Any] = {"triggers": (" one",), "grammar": 'root ::= " one" " done"'}
    marks = {"reasoning_budget_start_tag": "three", "reasoning_budget_end_tags": [" one"]}
    assert fluent.ask(COUNTING, n_predict=12, **lazy, **marks).text == " three one done"


@pytest.mark.model
def test_a_grammar_that_knows_no_reasoning_goes_on(fluent: Served) -> None:
    marks = {"reasoning_budget_start_tag": "a", "reasoning_budget_end_tags": ["END"]}
    answer = fluent.ask("x", grammar='root ::= "abc"', reasoning_budget_tokens=0, **marks)
    assert answer.text == "abc" and isinstance(answer.end, Done)
