"""Clients of HTTP/2 that send many requests or frames at once hold nobody else up."""

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.http.protocols import http2 as protocol
from gateway.http.protocols.http2 import Http2
from gateway.http.protocols.read_turns import ReadTurns
from tests.gateway.http.protocols.test_hostile_clients import Http2Client, gone, http2
from tests.gateway.inprocess import Running, until

N_REQUESTS = 400
"""Three times as many as are handled in one piece, 30 bytes each."""


class Starts:
    """Counts the requests that start in each turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns: list[int] = []
        self._turn = 0
        start = Http2._create_stream

        async def counted(protocol: Http2, request: Any) -> None:
            self.turns.append(self._turn)
            await start(protocol, request)

        monkeypatch.setattr(Http2, "_create_stream", counted)
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn += 1
        asyncio.get_running_loop().call_soon(self._next_turn)


def burst(client: Http2Client) -> None:
    """Send requests, each taken back at once, in a single write."""
    http = client.http
    for _ in range(N_REQUESTS):
        stream = http.get_next_available_stream_id()
        head = [(b":method", b"GET"), (b":path", b"/livez"), (b":scheme", b"http")]
        http.send_headers(stream, [*head, (b":authority", b"localhost")], end_stream=True)
        http.reset_stream(stream)
    client.flush()


@pytest.mark.slow
async def test_one_turn_of_the_loop_starts_one_request(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = Starts(monkeypatch)
    async with http2(gateway) as client:
        burst(client)
        assert await client.over(client.ask()) == b"200"
    assert len(starts.turns) == len(set(starts.turns)) == N_REQUESTS + 1
    await gone(gateway)


async def test_requests_of_a_client_that_has_left_are_not_started(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = Starts(monkeypatch)
    async with http2(gateway) as client:
        assert await client.over(client.ask()) == b"200"
        burst(client)
        client.writer.close()
    await gone(gateway)
    assert len(starts.turns) < N_REQUESTS / 2


async def test_a_piece_that_took_long_makes_the_next_wait_before_its_requests_have_begun(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty connections with requests of 90 headers each held up all answers for 0.5 s."""
    starts = Starts(monkeypatch)
    n_begun: list[int] = []
    monkeypatch.setattr(ReadTurns, "note", lambda *_: n_begun.append(len(starts.turns)))
    async with http2(gateway) as client:
        burst(client)
        assert await client.over(client.ask()) == b"200"
    await gone(gateway)
    assert n_begun[0] == 0
    assert max(after - before for before, after in itertools.pairwise(n_begun)) < N_REQUESTS / 2


async def test_what_is_read_without_a_request_counts(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some frames lead to no event, such as the head of a stream that was reset."""
    clock = itertools.count(0.0, 0.01)
    monkeypatch.setattr(protocol, "time", SimpleNamespace(thread_time=lambda: next(clock)))
    turns = gateway.server._config.connections.turns
    async with http2(gateway) as client:
        assert await client.over(client.ask()) == b"200"
        turns.paused_until = 0.0
        client.http.ping(b"a number")
        client.flush()
        await until(lambda: turns.paused_until > 0.0)
    await gone(gateway)


async def test_pieces_of_many_connections_do_not_add_up_to_a_long_wait() -> None:
    """Small pieces wait for none; a thousand of them must not keep a large one for seconds."""
    turns, now = ReadTurns(), asyncio.get_running_loop().time()
    turns.note(0.004)
    assert turns.paused_until == 0.0, "short"
    for _ in range(1000):
        turns.note(0.006)
    assert now < turns.paused_until < asyncio.get_running_loop().time() + 0.1


async def test_a_connection_with_many_frames_waits_for_its_turn_and_one_with_few_does_not(
    gateway: Running,
) -> None:
    async with gateway.server._config.connections.turns.lock, http2(gateway) as many:
        for _ in range(100):
            many.http.ping(b"a number")
        many.ask()
        async with http2(gateway) as few:
            assert await few.over(few.ask()) == b"200"
        assert not many.status
    await gone(gateway)


async def test_a_client_that_leaves_while_it_waits_for_its_turn_starts_nothing(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = Starts(monkeypatch)
    async with gateway.server._config.connections.turns.lock:
        async with http2(gateway) as client:
            burst(client)
            await until(lambda: gateway.metrics.connections.n_open == 1)
        async with http2(gateway) as few:  # when it is answered, the gateway has read the burst
            assert await few.over(few.ask()) == b"200"
    await gone(gateway)
    assert len(starts.turns) == 1
