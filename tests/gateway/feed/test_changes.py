"""States and the changes between them."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.feed.changes import State, difference, settled
from gateway.feed.feed_state import FeedState
from tests.gateway.feed.reader import applied

ROWS = st.one_of(st.integers(0, 2), st.lists(st.integers(0, 2), max_size=2), st.just({"a": None}))
SECTIONS = st.dictionaries(st.sampled_from("xyz"), ROWS, max_size=3)
STATES = st.dictionaries(st.sampled_from(["load", "queue"]), SECTIONS, min_size=2)


@given(STATES, STATES, STATES)
def test_a_change_leads_from_any_state_to_any_later_one(
    one: State, two: State, last: State
) -> None:
    states = [one, two, last]
    for before in states:
        assert applied(before, difference(before, last)) == last
    step = applied(applied(one, difference(one, two)), difference(two, last))
    assert step == last


@given(STATES, STATES)
def test_equal_rows_are_the_same_object_and_equal_sections_too(before: State, after: State) -> None:
    result = settled(before, after)
    assert result == after
    for name, section in before.items():
        if section == after.get(name):
            assert result[name] is section
        for key, row in section.items():
            if result.get(name, {}).get(key) == row:
                assert result[name][key] is row


def test_no_change_is_empty_and_a_row_that_is_gone_is_null() -> None:
    assert difference({"load": {"w": 1}}, {"load": {"w": 1}}) == {}
    assert difference({"load": {"w": 1, "v": 2}}, {"load": {"w": 1}}) == {"load": {"v": None}}


def test_a_frame_is_written_once_for_all_who_saw_the_same() -> None:
    first, second = FeedState(1, {"load": {"w": 1}}), FeedState(2, {"load": {"w": 2}})
    assert first.frame(None) == b'event: state\ndata: {"load":{"w":1}}\n\n'
    assert second.frame(first) == b'event: change\ndata: {"load":{"w":2}}\n\n'
    assert second.frame(first) is second.frame(first)
