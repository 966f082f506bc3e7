"""Asks the admin API of a soak pool, over its socket."""

import asyncio
from typing import Any

import orjson

from gateway.soak.pool import SoakPool


async def ask_admin(pool: SoakPool, path: str) -> dict[str, Any]:
    """Return the JSON object of an admin endpoint."""
    socket = pool.folder / "run" / "admin.sock"
    reader, writer = await asyncio.open_unix_connection(socket)
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    try:
        answer = await reader.read()
    finally:
        writer.close()
    return dict(orjson.loads(answer.partition(b"\r\n\r\n")[2]))
