"""How many prompt tokens a step reads, by the measured speed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.scheduling.budget import FIRST_CHUNK, MIN_CHUNK, StepBudget


def learnt() -> StepBudget:
    """Decoding 4 rows takes 20 ms; a prompt token takes 1 ms."""
    budget = StepBudget(target_s=0.1, n_batch=2048)
    for _ in range(20):
        budget.observe(n_decoding=4, n_prompt=0, elapsed_s=0.02)
        budget.observe(n_decoding=4, n_prompt=100, elapsed_s=0.02 + 0.1)
    return budget


def test_prompts_get_what_decoding_leaves_of_the_target() -> None:
    assert learnt().tokens(4) == 80


def test_fewer_rows_are_expected_to_take_as_long_and_more_in_proportion() -> None:
    assert [learnt().predict(n) for n in (0, 1, 4, 8)] == [0.0, 0.02, 0.02, 0.04]
    assert (learnt().tokens(1), learnt().tokens(8)) == (80, 60)


def test_the_first_step_of_other_rows_is_believed_at_once() -> None:
    budget = learnt()
    budget.observe(n_decoding=8, n_prompt=0, elapsed_s=0.03)
    assert budget.predict(8) == 0.03


def test_what_was_learnt_beside_a_busy_neighbour_is_corrected_while_prompts_are_read() -> None:
    budget = StepBudget(target_s=0.2, n_batch=2048)
    budget.observe(n_decoding=4, n_prompt=0, elapsed_s=0.1)
    budget.observe(n_decoding=4, n_prompt=16, elapsed_s=0.26)
    assert budget.tokens(4) == MIN_CHUNK
    for _ in range(30):  # the neighbour has gone, and no step only decodes
        n = budget.tokens(4)
        elapsed_s = 0.033 + n * 0.0035
        budget.observe(n_decoding=4, n_prompt=n, elapsed_s=elapsed_s)
    assert elapsed_s == pytest.approx(0.2, rel=0.05)


def test_a_step_may_be_longer_when_nobody_streams() -> None:
    assert learnt().tokens(0) == 500
    assert learnt().tokens(4, is_short=False) == 480


def test_a_slow_machine_reads_a_little_in_each_step() -> None:
    assert StepBudget(target_s=0.1, n_batch=2048, token_s=0.02).tokens(1) == MIN_CHUNK
    slow = StepBudget(target_s=0.1, n_batch=2048, token_s=0.001, decode_s=0.3, n_rows=1)
    assert slow.tokens(1) == MIN_CHUNK, "decoding alone takes longer than the target"


def test_before_anything_is_known_a_small_chunk_is_read() -> None:
    assert StepBudget(target_s=0.1, n_batch=2048).tokens(3) == FIRST_CHUNK
    assert StepBudget(target_s=0.1, n_batch=32).tokens(3) == 29


@given(token_s=st.floats(0, 10), elapsed_s=st.floats(0, 10), n_decoding=st.integers(0, 255))
def test_budget_always_makes_progress(token_s: float, elapsed_s: float, n_decoding: int) -> None:
    budget = StepBudget(target_s=0.1, n_batch=512, token_s=token_s)
    budget.observe(n_decoding=n_decoding, n_prompt=0, elapsed_s=elapsed_s)
    for is_short in (True, False):
        n = budget.tokens(n_decoding, is_short=is_short)
        assert MIN_CHUNK <= n <= 512 - n_decoding
