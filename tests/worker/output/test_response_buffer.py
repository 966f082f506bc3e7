"""Answers in one piece: what is held of them, and when it leaves."""

import pytest

from protocol.wire.messages import Delta, Done
from tests.worker.engines import Rig
from worker.output import response_buffer
from worker.output.response_buffer import MOST, ResponseBuffer


def deltas(rig: Rig, task: int) -> list[Delta]:
    return [message for message in rig.of(task) if isinstance(message, Delta)]


def test_an_answer_in_one_piece_leaves_after_its_first_token_in_one_delta() -> None:
    rig = Rig(n_ctx=512)
    whole = rig.submit("tell me", n_predict=40, stream=False)
    streamed = rig.submit("tell me", n_predict=40)
    rig.finish()
    assert [len(one.tokens) for one in deltas(rig, whole)] == [1, 39]
    assert len(deltas(rig, streamed)) == 40
    assert rig.text(whole) == rig.text(streamed)
    assert deltas(rig, whole)[-1].n_predicted == rig.done(whole).n_predicted == 40


def test_a_long_answer_leaves_in_several() -> None:
    rig = Rig(n_slots=1, n_ctx=2048)
    task = rig.submit("tell me", n_predict=MOST * 2 + 10, stream=False)
    rig.finish()
    assert [len(one.tokens) for one in deltas(rig, task)] == [1, MOST, MOST, 9]


def test_what_is_old_leaves_before_the_answer_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_buffer, "LONGEST_S", 0.05)
    rig = Rig(n_slots=1, step_ms=6)
    task = rig.submit("tell me", n_predict=30, stream=False)
    rig.finish()
    n_tokens = [len(one.tokens) for one in deltas(rig, task)]
    assert sum(n_tokens) == 30
    assert len(n_tokens) > 2 and max(n_tokens) <= 0.05 * 1e3 / 6 + 2


def test_probabilities_are_held_beside_their_tokens() -> None:
    rig = Rig()
    task = rig.submit("tell me", n_predict=6, n_probs=2, stream=False)
    rig.finish()
    assert [len(one.probs) for one in deltas(rig, task)] == [1, 5]


def test_what_was_held_comes_before_the_end_of_a_cancelled_answer() -> None:
    rig = Rig(n_ctx=512)
    task = rig.submit("tell me", n_predict=-1, stream=False)
    for _ in range(6):
        rig.turn()
    rig.cancel(task)
    rig.turn()
    assert isinstance(rig.of(task)[-1], Done)
    assert sum(len(one.tokens) for one in deltas(rig, task)) == rig.done(task).n_predicted


def test_timings_with_each_token_hold_nothing_back() -> None:
    rig = Rig()
    task = rig.submit("tell me", n_predict=5, stream=False, timings_per_token=True)
    rig.finish()
    assert len(deltas(rig, task)) == 5


def test_nothing_held_is_no_delta() -> None:
    assert ResponseBuffer().take(3) is None


def test_what_a_step_said_leaves_before_the_next_one_computes() -> None:
    rig = Rig(n_slots=1)
    seen: list[int] = []
    decode = rig.backend.decode

    def watched(rows: object) -> None:
        seen.append(len(rig.emitted))
        decode(rows)  # type: ignore[arg-type]

    rig.backend.decode = watched  # type: ignore[method-assign]
    rig.submit("tell me", n_predict=4)
    while not seen or rig.engine.n_busy:
        rig.turn()
        assert not rig.engine.n_busy or len(rig.emitted) == seen[-1], "not before that"
    assert seen == sorted(set(seen)), "each step found what the one before had said"
    assert len(seen) == 4
