"""Clients of HTTP/2 that let streams stay open: in all connections together they are few."""

import pytest
from h2.errors import ErrorCodes

from gateway.http.protocols import http2 as protocol
from tests.gateway.http.protocols.test_hostile_clients import LARGE, Http2Client, gone, http2
from tests.gateway.inprocess import Running, until

MAX_STREAMS = 5


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_MAX_STREAMS", MAX_STREAMS)


def n_streams(gateway: Running) -> int:
    return gateway.server._config.connections.streams.n


async def waiting(gateway: Running, client: Http2Client, n: int) -> list[int]:
    """Ask for answers that the client makes no room for."""
    before = n_streams(gateway)
    asked = [client.ask(LARGE.encode()) for _ in range(n)]
    await until(lambda: n_streams(gateway) == min(before + n, MAX_STREAMS))
    return asked


async def test_beyond_the_bound_a_connection_has_one_stream(gateway: Running) -> None:
    """Without a key 15,000 streams on 150 connections stopped all answers for 3 s."""
    async with http2(gateway, window=0) as client, http2(gateway) as other:
        *_, refused = await waiting(gateway, client, MAX_STREAMS + 1)
        assert await client.over(refused) == b""
        assert client.resets == {refused: ErrorCodes.REFUSED_STREAM}
        assert await other.over(other.ask()) == b"200"
    await gone(gateway)
    assert n_streams(gateway) == 0


async def test_streams_that_have_ended_make_room(gateway: Running) -> None:
    async with http2(gateway, window=0) as client, http2(gateway) as other:
        streams = await waiting(gateway, client, MAX_STREAMS)
        client.http.reset_stream(streams[0])
        client.flush()
        await until(lambda: n_streams(gateway) == MAX_STREAMS - 1)
        for _ in range(MAX_STREAMS):
            assert await other.over(other.ask()) == b"200"
        await until(lambda: n_streams(gateway) == MAX_STREAMS - 1)
    await gone(gateway)
    assert n_streams(gateway) == 0


async def test_connections_that_are_cut_leave_none_counted(gateway: Running) -> None:
    async with http2(gateway, window=0) as client:
        await waiting(gateway, client, 3)
        await gateway.server.close(grace_s=0)
    assert n_streams(gateway) == 0
