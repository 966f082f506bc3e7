"""The way from the other threads to the link."""

import select
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.messages import Delta
from worker.link.outbound import OutboundQueue

ONE, TWO = Delta(task_id=1, text="a"), Delta(task_id=2, text="b")


@pytest.fixture
def outlet() -> Iterator[OutboundQueue]:
    one = OutboundQueue()
    yield one
    one.close()


def is_readable(outlet: OutboundQueue) -> bool:
    return bool(select.select([outlet.fd], [], [], 0)[0])


def test_everything_comes_at_once_and_in_order(outlet: OutboundQueue) -> None:
    outlet.put([ONE])
    outlet.put([TWO, ONE])
    assert is_readable(outlet)
    assert outlet.take() == [ONE, TWO, ONE]
    assert not is_readable(outlet)
    assert outlet.take() == []


def test_a_wake_up_brings_nothing(outlet: OutboundQueue) -> None:
    outlet.wake()
    assert is_readable(outlet)
    assert outlet.take() == []


def test_more_wake_ups_than_are_read_at_once_lose_nothing(outlet: OutboundQueue) -> None:
    for _ in range(1000):
        outlet.put([ONE])
    taken = []
    while is_readable(outlet):
        taken += outlet.take()
    assert len(taken) == 1000


def test_what_may_not_leave_yet_is_held(outlet: OutboundQueue) -> None:
    assert outlet.due_s == float("inf")
    due = time.monotonic() + 1000
    outlet.put([ONE])
    outlet.put([TWO], due)
    assert outlet.take() == [ONE]
    assert outlet.due_s == due
    assert outlet.take() == []


def test_what_is_due_leaves_without_a_wake_up(outlet: OutboundQueue) -> None:
    outlet.put([ONE], time.monotonic() + 0.01)
    while not (taken := outlet.take()):
        assert outlet.due_s < float("inf")
        time.sleep(max(0.0, outlet.due_s - time.monotonic()))
    assert taken == [ONE]
    assert outlet.due_s == float("inf")


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30))
def test_nothing_overtakes_what_is_held(puts: list[tuple[int, bool]]) -> None:
    outlet = OutboundQueue()
    taken: list[object] = []
    for i, (kind, takes) in enumerate(puts):
        outlet.put([Delta(task_id=i)], time.monotonic() + 1000 if kind == 0 else 0.0)
        if takes:
            taken += outlet.take()
    outlet.put([Delta(task_id=len(puts))])
    taken += outlet.take()
    outlet.close()
    assert taken == [Delta(task_id=i) for i in range(len(puts) + 1)]
