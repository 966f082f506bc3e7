"""A message that takes long to arrive, because the line of its worker is slow."""

import asyncio
from pathlib import Path

from gateway.pool.network.access import PeerAccess
from gateway.pool.network.router_socket import RouterSocket

_GREETING = b"\xff" + b"\0" * 8 + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + b"\0" * 32
_READY = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\x01w"
_PING = b"\x04PING"


async def test_a_message_may_take_three_heartbeats(tmp_path: Path) -> None:
    frames: list[bytes] = []
    came = asyncio.Event()

    def on_frame(_: bytes, frame: object) -> None:
        frames.append(bytes(frame))  # type: ignore[call-overload] # a zmq.Frame is a buffer
        came.set()

    access = PeerAccess("", "", lambda _: None)
    router = RouterSocket(on_frame, lambda _: None, access, heartbeat_s=2.5)
    router.open([f"ipc://{tmp_path}/wire"])
    reader, writer = await asyncio.open_unix_connection(tmp_path / "wire")
    writer.write(_GREETING + bytes([4, len(_READY)]) + _READY)
    writer.write(b"\0\x0afirst")  # half of a message of ten bytes
    for _ in range(5):  # a second lies between two pings, and ZeroMQ would wait for three
        await reader.readuntil(_PING)
    writer.write(b"other")
    async with asyncio.timeout(10):
        await came.wait()
    assert frames == [b"firstother"]
    writer.close()
    router.close()
