"""Learning what a step costs."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.scheduling.cost import DecodeCost


def taught(noise: float, *, cell_s: float, seed: int = 1, n: int = 400) -> DecodeCost:
    """A machine with 10 ms a step and 2 ms a row."""
    dice, cost = random.Random(seed), DecodeCost()  # no secret
    for i in range(n):
        rows, cells = dice.randint(1, 16), 8000 * (i % 50) // 50
        elapsed_s = 0.01 + rows * (0.002 + cells * cell_s)
        cost.observe(rows, cells, elapsed_s * dice.gauss(1, noise))
    return cost


@given(rows=st.integers(1, 16), cells=st.integers(0, 8000), seed=st.integers(0, 20))
@settings(max_examples=30)
def test_predictions_are_close_in_spite_of_noise(rows: int, cells: int, seed: int) -> None:
    true = 0.01 + rows * (0.002 + cells * 0.3e-6)
    assert abs(taught(0.05, cell_s=0.3e-6, seed=seed).predict(rows, cells) - true) < 0.15 * true


def test_the_price_of_a_cell_is_found() -> None:
    cost = taught(0.02, cell_s=0.3e-6)
    for assumed_s in (0.0, 0.1e-6, 1e-6):
        assert 0.27e-6 < cost.price_s(assumed_s) < 0.33e-6


def test_a_price_that_cannot_be_told_from_noise_is_as_assumed() -> None:
    for seed in range(20):
        assert taught(0.3, cell_s=0.0, seed=seed).price_s(0.0) < 0.2e-6
        assert taught(0.3, cell_s=0.2e-6, seed=seed).price_s(0.2e-6) > 0.05e-6
    assert sum(taught(0.3, cell_s=0.0, seed=seed).price_s(0.0) > 0 for seed in range(20)) <= 2


def test_before_anything_is_learnt_a_cell_costs_what_is_assumed() -> None:
    assert DecodeCost().price_s(0.2e-6) == 0.2e-6
    assert DecodeCost().price_s(0.0) == 0.0


def test_a_price_is_never_far_from_what_is_assumed() -> None:
    assert taught(0.01, cell_s=0.0).price_s(0.4e-6) == 0.1e-6
    assert taught(0.01, cell_s=3e-6).price_s(0.4e-6) == 1.6e-6


def test_a_hiccup_is_not_believed() -> None:
    cost = taught(0.0, cell_s=0.0)
    before = cost.predict(8, 0)
    cost.observe(8, 0, 30.0)
    assert cost.predict(8, 0) < 1.5 * before


def test_a_machine_that_became_slower_is_learnt_anew() -> None:
    cost = taught(0.0, cell_s=0.0)
    for i in range(600):
        cost.observe(1 + i % 8, 0, 2 * (0.01 + (1 + i % 8) * 0.002))
    assert 0.045 < cost.predict(8, 0) < 0.055


def test_steps_that_are_all_alike_do_not_spoil_the_fit() -> None:
    cost = DecodeCost()
    for _ in range(20_000):
        cost.observe(4, 1000, 0.02)
    assert abs(cost.predict(4, 1000) - 0.02) < 1e-4
    assert 0.0 <= cost.predict(5, 1200) < 0.1


def test_a_step_takes_as_long_as_the_last_ones_of_as_many_rows() -> None:
    cost = taught(0.0, cell_s=2e-6)
    cost.note(4, 0.02)
    assert cost.predict(4, 8000) == 0.02, "whatever the fit says"
    cost.note(4, 3.0)
    assert cost.predict(4, 8000) <= 0.05, "a hiccup"
    for _ in range(10):
        cost.note(4, 0.03)
    assert abs(cost.predict(4, 8000) - 0.03) < 1e-3


@given(rows=st.integers(1, 16), last=st.integers(1, 16), cells=st.integers(0, 8000))
def test_what_the_fit_says_is_bounded_by_the_last_steps(rows: int, last: int, cells: int) -> None:
    cost = taught(0.0, cell_s=0.0, n=50)
    cost.note(last, 0.1)
    predicted, ratio = cost.predict(rows, cells), rows / last
    if ratio < 1:
        assert 0.066 * ratio <= predicted <= 0.1
    else:
        assert 0.1 <= predicted <= 0.151 * ratio


def test_where_the_fit_has_gone_astray_the_time_goes_with_the_rows() -> None:
    cost = DecodeCost(weights=[0.5, 0.0, 0.0])
    cost.note(8, 0.04)
    assert cost.predict(4, 0) == 0.02
    assert cost.predict(16, 0) == 0.08
