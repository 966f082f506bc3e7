"""Samples: rates, quantiles, bounds, and what other gateways add."""

from collections.abc import Sequence

import pytest

from gateway.feed.history import N_SECONDS, RecentMinutes, Totals, quantile, read_seconds

BOUNDS = (0.1, 1.0, float("inf"))


def add(
    history: RecentMinutes,
    second: int,
    n: float = 0,
    *,
    moved: int = 0,
    ttft: Sequence[float] = (0, 0, 0),
) -> None:
    totals = Totals(n_predicted=n, n_prompt=2 * n, n_cached=2 * n, n_busy=1, n_slots=4)
    history.add(second, totals, n_waiting=2, n_moved=moved, ttft=ttft)


def test_rates_are_taken_over_seconds_and_latencies_over_ten() -> None:
    history = RecentMinutes(BOUNDS)
    for i in range(5):
        add(history, 100 + i, n=20 * i, ttft=(0, 10 * (i == 4), 0))
    rows = history.rows([])
    assert list(rows) == [str(100 + i) for i in range(5)]
    assert rows["104"] == [20.0, 40.0, 0.5, 0.55, 0.955, 1, 4, 2, 0]
    assert rows["100"][:5] == [0.0, 0.0, None, None, None]
    assert list(history.rows([], since=103)) == ["104"]


def test_ten_minutes_are_kept_and_no_more() -> None:
    history = RecentMinutes(BOUNDS)
    for i in range(2 * N_SECONDS):
        add(history, i + 1)
    rows = history.rows([])
    assert len(rows) == N_SECONDS
    assert list(rows)[-1] == str(2 * N_SECONDS)
    assert len(history.own_rows()) == N_SECONDS


def test_a_clock_that_is_set_back_begins_anew() -> None:
    history = RecentMinutes(BOUNDS)
    for second in (100, 101, 50, 50, 51):
        add(history, second)
    assert list(history.rows([])) == ["50", "51"]
    assert [row[0] for row in history.own_rows()] == [50, 51]


def test_what_other_gateways_counted_is_added() -> None:
    own, other = RecentMinutes(BOUNDS), RecentMinutes(BOUNDS)
    for second in (10, 11):
        add(own, second, ttft=(0, 0, 0))
        add(other, second, moved=3 * (second - 10), ttft=(0, 4 * (second - 10), 0))
    told = read_seconds(other.own_rows())
    assert own.rows([told])["11"][3:] == [0.55, 0.955, 1, 4, 4, 3]


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ({}, 0.5, None),
        ({0: 10}, 0.5, 0.05),
        ({0: 5, 1: 5}, 0.5, 0.1),
        ({0: 5, 1: 5}, 1.0, 1.0),
        ({2: 1}, 0.5, 1.0),
    ],
)
def test_quantiles_are_those_of_prometheus(
    counts: dict[int, int], share: float, value: float | None
) -> None:
    assert quantile(counts, BOUNDS, share) == pytest.approx(value)
