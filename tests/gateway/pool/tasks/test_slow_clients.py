"""What waits for clients that read slowly has a bound, for each and for all together."""

from dataclasses import replace

import pytest

from gateway.pool.tasks import deltas
from gateway.pool.tasks import stream as streams
from gateway.pool.tasks.deltas import merge
from gateway.pool.tasks.stream import DeltaOffers, TaskStream
from protocol.errors import TaskError
from protocol.wire.facts import TokenProb
from protocol.wire.messages import Delta
from tests.gateway.pool.tasks.test_stream import DONE, stream

PROB = TokenProb(id=1, piece=b"a", p=-1.0, top=((1, b"a", -1.0),) * 10)
MANY = Delta(text="a", tokens=(1,), n_predicted=1, probs=(PROB,))
"""A token with ten alternatives, which take 200 bytes each."""


async def test_alternatives_that_a_slow_client_does_not_fetch_end_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_MAX_PENDING", 100_000)
    closed: list[TaskStream] = []
    one = stream(closed=closed)
    n = 0
    while one.is_open:
        one.push_delta(MANY, 11.0)
        n += 1
    assert n < 200 and closed == [one]
    with pytest.raises(TaskError, match="too slowly"):
        await one.receive()


async def test_what_waits_is_copied_only_as_often_as_it_doubles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All was copied with each 64 tokens: of 256,000 with their probabilities for 20 ms."""
    copied = 0

    def counted(parts: list[Delta]) -> Delta:
        nonlocal copied
        copied += sum(len(part.tokens) for part in parts)
        return merge(parts)

    monkeypatch.setattr(deltas, "merge", counted)
    monkeypatch.setattr(streams, "_COMPACT_BYTES", 100_000_000)
    one, n = stream(), 64 * 200
    sent = [replace(MANY, text=chr(i), tokens=(i,), n_predicted=i) for i in range(32, n + 32)]
    for delta in sent:
        one.push_delta(delta, 11.0)
    assert n <= copied < 12 * n
    one.push(DONE)
    got: list[Delta] = []
    while isinstance(message := await one.receive(), Delta):
        got.append(message)
    assert merge(got) == merge(sent)


async def test_what_waits_for_all_slow_clients_together_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_COMPACT_BYTES", 2_000)
    monkeypatch.setattr(streams, "_MAX_TOGETHER", 100_000)
    offers, closed = DeltaOffers(), list[TaskStream]()
    ended, late = stream(offers, closed), stream(offers, closed)
    for _ in range(30):
        ended.push_delta(MANY, 11.0)
    ended.push(DONE)
    n_ended = offers.n_waiting
    assert n_ended > 30 * 10 * 200
    while ended.has_mail:
        late.push_delta(MANY, 11.0)
        assert offers.n_waiting < 110_000
    assert late.is_open and closed == [], "the other held more"
    with pytest.raises(TaskError, match="too slowly"):
        await ended.receive()
    late.close()
    ended.close()
    assert offers.n_waiting == 0 and not offers.holders


async def test_the_answer_of_which_most_waits_is_given_up_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_COMPACT_BYTES", 2_000)
    monkeypatch.setattr(streams, "_MAX_TOGETHER", 100_000)
    offers, closed = DeltaOffers(), list[TaskStream]()
    slowest, slow, slower = (stream(offers, closed) for _ in range(3))
    for _ in range(20):
        slow.push_delta(MANY, 11.0)
        slowest.push_delta(MANY, 11.0)
    slow_delta = await slow.receive()
    assert isinstance(slow_delta, Delta) and offers.n_waiting > 2 * 20 * 10 * 200
    while not closed:
        slower.push_delta(MANY, 11.0)
    assert closed == [slowest], "the other is writing what it holds"
    assert offers.n_waiting < 70_000
    with pytest.raises(TaskError, match="too slowly"):
        await slowest.receive()
    for one in (slowest, slow, slower):
        one.close()
    assert offers.n_waiting == 0 and not offers.holders
