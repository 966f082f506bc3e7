"""Whether the other side of a connection has left, asked of a socket of uvloop."""

import asyncio
import contextlib

import uvloop

from gateway.http.protocols.pause import has_client_left


async def states() -> list[bool]:
    """Ask while a connection is open, after the client has left, and after our own end of it."""
    found: list[bool] = []
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        found.append(has_client_left(sock))
        writer.write(b"x")
        await reader.read()
        found.append(has_client_left(sock))
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        found.append(has_client_left(sock))
        over.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    await reader.read(1)
    writer.close()
    await over.wait()
    server.close()
    return found


def test_a_socket_that_is_closed_here_has_hung_up() -> None:
    assert uvloop.run(states()) == [False, True, True]
