"""The way from the other threads to the link."""

import select
from collections.abc import Iterator

import pytest

from protocol.wire.messages import Delta, Envelope, TaskKey
from worker.link.outbound import OutboundQueue

ONE, TWO = Envelope(TaskKey(1), Delta(text="a")), Envelope(TaskKey(2), Delta(text="b"))


@pytest.fixture
def outbound_queue() -> Iterator[OutboundQueue]:
    one = OutboundQueue()
    yield one
    one.close()


def is_readable(outbound_queue: OutboundQueue) -> bool:
    return bool(select.select([outbound_queue.fd], [], [], 0)[0])


def test_everything_comes_at_once_and_in_order(outbound_queue: OutboundQueue) -> None:
    outbound_queue.put([ONE])
    outbound_queue.put([TWO, ONE])
    assert is_readable(outbound_queue)
    assert outbound_queue.take() == [ONE, TWO, ONE]
    assert not is_readable(outbound_queue)
    assert outbound_queue.take() == []


def test_a_wake_up_brings_nothing(outbound_queue: OutboundQueue) -> None:
    outbound_queue.wake()
    assert is_readable(outbound_queue)
    assert outbound_queue.take() == []


def test_more_wake_ups_than_are_read_at_once_lose_nothing(outbound_queue: OutboundQueue) -> None:
    for _ in range(1000):
        outbound_queue.put([ONE])
    taken = []
    while is_readable(outbound_queue):
        taken += outbound_queue.take()
    assert len(taken) == 1000
