"""The gate relays what it is told to, and does the harm that it is told to."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.soak.gate import GateAddress, LinkConditions, TcpGate
from tests.faults.bit_flips import BitFlips


@asynccontextmanager
async def echo(listen: GateAddress | None = None) -> AsyncIterator[tuple[TcpGate, GateAddress]]:
    """A gate, and its address, before a server that sends back what comes."""
    answering = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.current_task())
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    gate = TcpGate(GateAddress(port=server.sockets[0].getsockname()[1]), listen)
    try:
        yield gate, await gate.open()
    finally:
        await gate.close()
        server.close()
        await asyncio.gather(*filter(None, answering))


async def dial(address: GateAddress) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.path:
        return await asyncio.open_unix_connection(address.path)
    return await asyncio.open_connection(address.host, address.port)


async def sent(address: GateAddress, data: bytes) -> bytes:
    reader, writer = await dial(address)
    writer.write(data)
    got = await asyncio.wait_for(reader.readexactly(len(data)), 10)
    writer.close()
    return got


async def test_relays_everything_in_order() -> None:
    async with echo() as (_, address):
        data = bytes(range(256)) * 4000
        assert await sent(address, data) == data


async def test_relays_unix_sockets(tmp_path: Path) -> None:
    async with echo(GateAddress(path=str(tmp_path / "gate"))) as (_, address):
        assert await sent(address, b"hello") == b"hello"


async def test_slices_and_delays() -> None:
    async with echo() as (gate, address):
        gate.conditions = LinkConditions(latency_s=0.05, slice_bytes=1)
        start_s = time.monotonic()
        assert await sent(address, b"x" * 100) == b"x" * 100
        assert time.monotonic() - start_s >= 0.1


async def test_stall_holds_and_loses_nothing() -> None:
    async with echo() as (gate, address):
        reader, writer = await dial(address)
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        gate.stall()
        writer.write(b"bc")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), 0.1)
        gate.resume()
        assert await asyncio.wait_for(reader.readexactly(2), 5) == b"bc"
        writer.close()


@pytest.mark.parametrize("is_reset", [False, True])
async def test_cut_ends_the_connections_that_are_there(is_reset: bool) -> None:
    async with echo() as (gate, address):
        reader, writer = await dial(address)
        writer.write(b"a")
        await reader.readexactly(1)
        if is_reset:
            gate.reset()
            with pytest.raises(ConnectionResetError):
                await reader.read()
        else:
            gate.cut()
            assert await reader.read() == b""
        writer.close()
        assert await sent(address, b"x") == b"x"


async def test_flips_exactly_one_bit() -> None:
    async with echo() as (gate, address):
        BitFlips(gate).flip()
        got = await sent(address, bytes(1000))
        assert sum(byte.bit_count() for byte in got) == 1
        assert await sent(address, bytes(1000)) == bytes(1000)
