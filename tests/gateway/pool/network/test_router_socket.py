"""The ROUTER socket: whatever peers write, every frame of the others comes out once."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq

from gateway.pool.network.access import PeerAccess
from gateway.pool.network.router_socket import RouterSocket

Frames = list[tuple[bytes, bytes]]


class Wire:
    """A router and what came out of it; `fails_at` breaks the receiver once."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"ipc://{folder}/wire"
        self.frames: Frames = []
        self.fails_at = b""
        self.came = asyncio.Event()
        self.router = RouterSocket(
            self._on_frame, lambda _: None, PeerAccess("", "", lambda _: None)
        )

    def _on_frame(self, identity: bytes, frame: zmq.Frame) -> None:
        data = frame.bytes
        self.frames.append((identity, data))
        self.came.set()
        if data == self.fails_at:
            raise ValueError(data)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self.came.clear()
                await self.came.wait()


@asynccontextmanager
async def wired(folder: Path) -> AsyncIterator[tuple[Wire, "zmq.Socket[bytes]"]]:
    """A router with one DEALER named `w`."""
    wire = Wire(folder)
    wire.router.open([wire.endpoint])
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.IDENTITY, b"w")
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.SNDHWM, 0)
        dealer.connect(wire.endpoint)
        yield wire, dealer
    wire.router.close()


@pytest.mark.parametrize("parts", [[b"", b"x"], [b"a", b"b", b"c"], [b"a"] * 9])
async def test_messages_of_several_parts_are_dropped_whole(
    tmp_path: Path, parts: list[bytes]
) -> None:
    async with wired(tmp_path) as (wire, dealer):
        dealer.send(b"1")
        dealer.send_multipart(parts)
        dealer.send(b"2")
        dealer.send_multipart(parts)
        await wire.until(lambda: len(wire.frames) >= 2)
        dealer.send(b"3")
        await wire.until(lambda: len(wire.frames) >= 3)
    assert wire.frames == [(b"w", b"1"), (b"w", b"2"), (b"w", b"3")]


async def test_a_flood_comes_out_whole_and_in_order(tmp_path: Path) -> None:
    async with wired(tmp_path) as (wire, dealer):
        sent = [b"%d" % i for i in range(2000)]
        for data in sent:
            dealer.send(data)
        await wire.until(lambda: len(wire.frames) >= len(sent))
    assert [data for _, data in wire.frames] == sent


async def test_frames_between_sends_of_our_own_are_noticed(tmp_path: Path) -> None:
    async with wired(tmp_path) as (wire, dealer):
        for i in range(200):
            dealer.send(b"%d" % i)
            await wire.until(lambda n=i + 1: len(wire.frames) == n)  # type: ignore[misc]  # bound at once
            assert wire.router.send(b"w", b"x")
            dealer.send(b"")
            wire.frames.pop()
            await wire.until(lambda n=i + 1: len(wire.frames) == n)  # type: ignore[misc]  # bound at once


async def test_a_frame_that_breaks_the_receiver_does_not_hold_up_the_next(tmp_path: Path) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with wired(tmp_path) as (wire, dealer):
        wire.fails_at = b"1"
        for data in (b"0", b"1", b"2"):
            dealer.send(data)
        await wire.until(lambda: len(wire.frames) == 3)
    assert [data for _, data in wire.frames] == [b"0", b"1", b"2"]


async def test_a_flood_of_a_peer_that_hangs_up_arrives_whole(tmp_path: Path) -> None:
    """With a bound on what is received libzmq may abort here: see `RouterSocket.open`."""
    wire = Wire(tmp_path)
    wire.router.open([wire.endpoint])
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.SNDHWM, 0)
        dealer.setsockopt(zmq.LINGER, 10_000)
        dealer.connect(wire.endpoint)
        for number in range(5000):
            dealer.send(b"%d" % number)
    # The loop has not turned: nobody has read while the peer sent all and left.
    await wire.until(lambda: len(wire.frames) == 5000)
    assert [data for _, data in wire.frames] == [b"%d" % number for number in range(5000)]
    wire.router.close()


async def test_connections_do_not_wait_for_a_loop_that_is_busy(tmp_path: Path) -> None:
    """ZeroMQ's thread stopped at 2,000 unread events, and `close` waited for it for ever."""
    async with wired(tmp_path) as (wire, _):
        for _ in range(1000):
            with socket.socket(socket.AF_UNIX) as one:
                one.settimeout(5.0)
                one.connect(wire.endpoint.removeprefix("ipc://"))
                assert one.recv(1), "ZeroMQ's greeting"
