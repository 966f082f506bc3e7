"""What waits for a client of HTTP/2 that gives no room is bounded, and freed when it leaves."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from h2.settings import SettingCodes
from hypercorn.protocol.h2 import BUFFER_HIGH_WATER, StreamBuffer

from tests.gateway.http.protocols.test_hostile_clients import LARGE, Http2Client, gone, http2
from tests.gateway.inprocess import Running, until

ROOM = 1 << 20
SOON_S = 10.0
"""Sooner than the time after which an answer without room is given up."""


class Pushed:
    """Records how much waits in a buffer after each push, and how many pushes have returned."""

    def __init__(self, set_push: Callable[[object], None]) -> None:
        self.sizes: list[int] = []
        self.n_over = 0
        push = StreamBuffer.push

        async def recorded(buffer: StreamBuffer, data: bytes) -> None:
            self.sizes.append(len(buffer.buffer) + len(data))
            try:
                await push(buffer, data)
            finally:
                self.n_over += 1

        set_push(recorded)


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> Pushed:
    return Pushed(lambda push: monkeypatch.setattr(StreamBuffer, "push", push))


@asynccontextmanager
async def waiting_for_room(
    gateway: Running, pushed: Pushed
) -> AsyncIterator[tuple[Http2Client, int]]:
    """Ask for a large answer without a window; yields when it waits for room."""
    async with http2(gateway, window=0) as client:
        stream = client.ask(LARGE.encode())
        await until(lambda: bool(pushed.sizes))
        yield client, stream


async def test_a_large_answer_without_room_is_not_buffered_whole(
    gateway: Running, pushed: Pushed
) -> None:
    async with waiting_for_room(gateway, pushed) as (client, stream):
        client.http.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: ROOM})
        client.http.increment_flow_control_window(ROOM)
        client.flush()
        assert await client.over(stream) == b"200"
    assert len(pushed.sizes) > 4
    assert max(pushed.sizes) <= 2 * BUFFER_HIGH_WATER
    await gone(gateway)


async def test_an_answer_that_waits_for_room_ends_when_its_stream_is_reset(
    gateway: Running, pushed: Pushed
) -> None:
    async with waiting_for_room(gateway, pushed) as (client, stream):
        client.http.reset_stream(stream)
        client.flush()
        async with asyncio.timeout(SOON_S):
            await until(lambda: pushed.n_over == len(pushed.sizes))
    await gone(gateway)
