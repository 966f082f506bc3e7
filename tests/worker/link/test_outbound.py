"""The way from the other threads to the link."""

import select
from collections.abc import Iterator

import pytest

from protocol.wire.messages import Delta, Envelope, TaskKey
from worker.link.outbound import OutboundQueue

ONE, TWO = Envelope(TaskKey(1), Delta(text="a")), Envelope(TaskKey(2), Delta(text="b"))


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
