"""What waits for clients that read slowly has a bound, for each and for all together."""

import pytest

from gateway.pool import stream as streams
from gateway.pool.stream import DeltaOffers, TaskStream
from protocol.errors import TaskError
from protocol.wire.facts import TokenProb
from protocol.wire.messages import Delta
from tests.gateway.pool.test_stream import DONE, stream


async def test_alternatives_that_a_slow_client_does_not_fetch_end_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_MAX_PENDING", 100_000)
    closed: list[TaskStream] = []
    one = stream(closed=closed)
    prob = TokenProb(id=1, piece=b"a", p=-1.0, top=((1, b"a", -1.0),) * 10)
    for n in range(1, 1000):
        one.push_delta(Delta(text="a", tokens=(1,), n_predicted=n, probs=(prob,)), 11.0)
        if not one.is_open:
            break
    assert n < 200 and closed == [one]
    assert isinstance(await one.receive(), Delta)
    with pytest.raises(TaskError, match="too slowly"):
        await one.receive()


async def test_what_waits_for_all_slow_clients_together_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_COMPACT_BYTES", 2_000)
    monkeypatch.setattr(streams, "_MAX_TOGETHER", 100_000)
    offers, closed = DeltaOffers(), list[TaskStream]()
    ended, late = stream(offers, closed), stream(offers, closed)
    prob = TokenProb(id=1, piece=b"a", p=-1.0, top=((1, b"a", -1.0),) * 10)
    one = Delta(text="a", tokens=(1,), n_predicted=1, probs=(prob,))
    for _ in range(30):
        ended.push_delta(one, 11.0)
    ended.push(DONE)
    n_ended = offers.n_waiting
    assert n_ended > 30 * 10 * 200
    while late.is_open:
        late.push_delta(one, 11.0)
        assert offers.n_waiting < 110_000
    assert closed == [late]
    assert isinstance(await ended.receive(), Delta)
    assert offers.n_waiting > n_ended, "it is being written"
    assert await ended.receive() is DONE
    late.close()
    ended.close()
    assert offers.n_waiting == 0
