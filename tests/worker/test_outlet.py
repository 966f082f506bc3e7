"""The way from the other threads to the link."""

import select
from collections.abc import Iterator

import pytest

from protocol.messages import Delta
from worker.outlet import Outlet

ONE, TWO = Delta(task_id=1, text="a"), Delta(task_id=2, text="b")


@pytest.fixture
def outlet() -> Iterator[Outlet]:
    one = Outlet()
    yield one
    one.close()


def is_readable(outlet: Outlet) -> bool:
    return bool(select.select([outlet.fd], [], [], 0)[0])


def test_everything_comes_at_once_and_in_order(outlet: Outlet) -> None:
    outlet.put([ONE])
    outlet.put([TWO, ONE])
    assert is_readable(outlet)
    assert outlet.take() == [ONE, TWO, ONE]
    assert not is_readable(outlet)
    assert outlet.take() == []


def test_a_wake_up_brings_nothing(outlet: Outlet) -> None:
    outlet.wake()
    assert is_readable(outlet)
    assert outlet.take() == []


def test_more_wake_ups_than_are_read_at_once_lose_nothing(outlet: Outlet) -> None:
    for _ in range(1000):
        outlet.put([ONE])
    taken = []
    while is_readable(outlet):
        taken += outlet.take()
    assert len(taken) == 1000
