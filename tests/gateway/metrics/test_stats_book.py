"""The workers' counters over runs of workers and over gateways that hear them in part."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics.stats_book import StatsBook
from protocol.wire.facts import Stats


def told(book: StatsBook) -> list[dict[str, object]]:
    """What another gateway of the host reads."""
    rows: list[dict[str, object]] = orjson.loads(
        orjson.dumps(book.as_rows(), option=orjson.OPT_NON_STR_KEYS)
    )
    return rows


def test_a_gateway_that_starts_knows_the_work_of_workers_that_died_before() -> None:
    old, new = StatsBook(), StatsBook()
    old.record("w", "m", 1, Stats(n_predicted=100, n_tokens_max=9, accepted_at=(3, 1)))
    for book in (old, new):
        book.record("w", "m", 2, Stats(n_predicted=10, accepted_at=(1,)))
    new.take_over(told(old))
    assert new.totals()["n_predicted"] == 110
    assert new.totals()["n_tokens_max"] == 9
    assert new.accepted_at() == [4, 1]


def test_what_both_gateways_have_heard_counts_once() -> None:
    one, other = StatsBook(), StatsBook()
    one.record("w", "m", 1, Stats(n_predicted=10))
    other.record("w", "m", 1, Stats(n_predicted=12))
    for _ in range(3):
        one.take_over(told(other))
        other.take_over(told(one))
    one.record("w", "m", 1, Stats(n_predicted=15))
    assert (one.totals()["n_predicted"], other.totals()["n_predicted"]) == (15, 12)


def test_rows_of_another_release_count_as_far_as_they_are_known() -> None:
    book = StatsBook()
    rows = [
        {
            "worker": "w",
            "model": "m",
            "n_tokens_max": 3,
            "runs": {"1": {"n_predicted": 7, "n_new": 1}},
        }
    ]
    book.take_over(rows)
    assert book.totals()["n_predicted"] == 7


@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.sampled_from(["record", "die", "tell"])),
        max_size=120,
    )
)
def test_two_gateways_that_tell_each_other_agree_with_one_that_heard_all(
    turns: list[tuple[bool, bool, str]],
) -> None:
    whole, pair = StatsBook(), (StatsBook(), StatsBook())
    epoch, n = 1, 0
    for first, second, what in turns:
        if what == "die":
            # Who missed the end of a run is told by whoever heard it.
            for one, other in ((0, 1), (1, 0)):
                pair[one].take_over(told(pair[other]))
            epoch, n = epoch + 1, 0
        elif what == "tell":
            pair[0].take_over(told(pair[1]))
        elif first or second:
            n += 1
            stats = Stats(n_predicted=n, accepted_at=(n,))
            whole.record("w", "m", epoch, stats)
            for heard, book in zip((first, second), pair, strict=True):
                if heard:
                    book.record("w", "m", epoch, stats)
    pair[0].take_over(told(pair[1]))
    assert pair[0].totals() == whole.totals()
    assert pair[0].accepted_at() == whole.accepted_at()


@pytest.mark.parametrize("n_runs", [1, 16, 17, 100])
def test_a_worker_that_dies_again_and_again_takes_no_more_room(n_runs: int) -> None:
    book, late = StatsBook(), StatsBook()
    for epoch in range(1, n_runs + 1):
        book.record("w", "m", epoch, Stats(n_predicted=2))
        if epoch % 5 == 0:
            late.record("w", "m", epoch, Stats(n_predicted=1))
        if epoch % 7 == 0:
            late.take_over(told(book))
    late.take_over(told(book))
    assert book.totals()["n_predicted"] == late.totals()["n_predicted"] == 2 * n_runs
    (row,) = told(book)
    assert isinstance(row["runs"], dict) and len(row["runs"]) <= 16


def test_a_clock_that_was_set_back_does_not_count_a_run_twice() -> None:
    book = StatsBook()
    for epoch in range(100, 120):
        book.record("w", "m", epoch, Stats(n_predicted=1))
    for n_predicted in (5, 6, 7):
        book.record("w", "m", 50, Stats(n_predicted=n_predicted))
    assert book.totals()["n_predicted"] == 20 + 7
    book.record("w", "m", 51, Stats(n_predicted=1))
    assert book.totals()["n_predicted"] == 20 + 7 + 1
