"""A grammar that waits for its text."""

import pytest

from protocol.wire.messages import Done
from tests.worker.served import Served
from worker.llama.sampling.trigger import Trigger

PIECES = [b"a", b"<tool", b"_call>", b"_call>x", b"b<", b"tool_call>", b"<tool_call>", b""]
A, TOOL, CALL, CALL_X, B_TOOL, REST, WHOLE, EMPTY = range(8)


def watch(*tokens: int) -> list[object]:
    """What is said of each token."""
    trigger = Trigger(["<tool_call>"], PIECES, lambda text: [len(text)])
    return [trigger.watch(token) for token in tokens]


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        ((A, WHOLE), [WHOLE]),
        ((A, A, TOOL, CALL), [TOOL, CALL]),
        ((TOOL, TOOL, CALL), [TOOL, CALL]),
        ((TOOL, CALL_X), [TOOL, CALL_X]),
        ((A, EMPTY, TOOL, EMPTY, CALL), [TOOL, CALL]),
        ((A, B_TOOL, REST), [len("<tool_call>")]),  # it begins inside a token: tokenized anew
    ],
)
def test_the_grammar_is_shown_what_was_written_from_the_trigger_on(
    tokens: tuple[int, ...], shown: list[int]
) -> None:
    *before, last = watch(*tokens)
    assert not any(before)
    assert list(last) == shown  # type: ignore[call-overload]  # a sequence by then


def test_other_texts_trigger_nothing_and_are_forgotten() -> None:
    trigger = Trigger(["<tool_call>"], PIECES, lambda text: [])
    assert not any(trigger.watch(token) for token in (A, TOOL, A, CALL) * 100)
    assert len(trigger._tail) < 12


@pytest.mark.model
@pytest.mark.parametrize(
    ("grammar", "goes_on"),
    [('root ::= " one" " done"', " one done"), ('root ::= "never"', None)],
)
def test_the_model_is_free_before_the_trigger_and_bound_after(
    fluent: Served, grammar: str, goes_on: str | None
) -> None:
    prompt = "one two three one two three one two three one two"
    free = fluent.ask(prompt, n_predict=12).text
    assert " one two" in free
    bound = fluent.ask(prompt, n_predict=12, triggers=(" one",), grammar=grammar)
    assert isinstance(bound.end, Done)
    before = free[: free.index(" one")]
    if goes_on is None:  # what was written does not fit: the text stays free
        assert bound.text == free
    else:
        assert bound.text == before + goes_on
