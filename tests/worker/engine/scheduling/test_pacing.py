"""Turns of streams before pieces of a prompt: pure decisions."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.scheduling.cost import DecodeCost
from worker.engine.scheduling.pacing import (
    LONGEST,
    MOST,
    PIECE,
    SPREAD,
    PacingPlan,
    StreamPacer,
    plan_turn,
)
from worker.engine.scheduling.scheduler import TILE, StepBudget

TARGET_S = 0.1


def budget_of(decode_s: float, token_s: float) -> StepBudget:
    decode = DecodeCost()
    if decode_s:
        decode.note(4, decode_s)
        decode.weights = [decode_s, 0.0, 0.0]
    return StepBudget(TARGET_S, 2048, token_s, decode=decode, takes_turns=True)


@given(decode_ms=st.floats(0.1, 500), token_ms=st.floats(0.01, 50), n_left=st.integers(1, 10_000))
def test_tokens_are_let_out_over_all_the_time_and_prompts_come_first(
    decode_ms: float, token_ms: float, n_left: int
) -> None:
    turn = plan_turn(budget_of(decode_ms / 1e3, token_ms / 1e3), n_left, 4, 1000)
    if turn == PacingPlan():
        return
    assert turn.n_steps >= 2
    assert 0 < turn.n_tokens <= min(n_left, PIECE)
    decode_s = turn.n_steps * decode_ms / 1e3
    piece_s = turn.n_steps * turn.interval_s - decode_s
    assert piece_s >= turn.n_tokens * token_ms / 1e3, "the piece is over when the last one leaves"
    assert decode_s * MOST <= piece_s * 1.001


def test_a_long_piece_is_spread_as_far_as_is_wanted() -> None:
    turn = plan_turn(budget_of(0.02, 0.0025), 1000, 4, 1000)
    assert turn.n_tokens == PIECE
    assert turn.n_steps == 3
    assert turn.interval_s <= SPREAD * TARGET_S


def test_a_slow_model_reads_one_tile_at_a_time() -> None:
    turn = plan_turn(budget_of(0.05, LONGEST * TARGET_S / PIECE * 1.1), 1000, 4, 1000)
    assert turn.n_tokens == TILE
    assert turn.n_steps > 1


@pytest.mark.parametrize(
    "budget",
    [budget_of(0.0, 0.0025), budget_of(0.02, 0.0), budget_of(0.2, 0.0025), budget_of(0.02, 0.0001)],
    ids=["no step yet", "no prompt yet", "dear steps", "cheap prompts"],
)
def test_otherwise_prompts_and_streams_alternate(budget: StepBudget) -> None:
    assert plan_turn(budget, 1000, 4, 1000) == PacingPlan()


@given(n_steps=st.integers(2, 9), interval_s=st.floats(0.001, 1.0), now=st.floats(0, 1e6))
def test_each_step_of_a_turn_is_due_an_interval_after_the_one_before(
    n_steps: int, interval_s: float, now: float
) -> None:
    pace = StreamPacer()
    pace.begin(PacingPlan(n_steps, TILE, interval_s))
    due = [now]
    while pace.goes_on:
        due.append(pace.go_on(now + len(due) * 1e-3))
    assert len(due) == n_steps
    gaps = [later - earlier for earlier, later in itertools.pairwise(due)]
    assert gaps == pytest.approx([interval_s] * (n_steps - 1), abs=2e-3)
    assert pace.n_tokens == TILE


def test_there_is_no_turn_at_first() -> None:
    assert (StreamPacer().goes_on, StreamPacer().n_tokens) == (False, 0)


def test_what_is_left_of_a_turn_is_dropped() -> None:
    pace = StreamPacer()
    pace.begin(PacingPlan(3, TILE, 1.0))
    assert pace.go_on(5.0) == 6.0
    pace.end()
    assert (pace.goes_on, pace.n_tokens) == (False, 0)
