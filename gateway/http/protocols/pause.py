"""Waits for an answer before the next request is read, and notices a client that leaves meanwhile.

Of pipelined requests the first two are read. Nothing more is read until the first is answered, so
the end of the connection would go unnoticed.
"""

import asyncio
import fcntl
import socket
import sys
from collections.abc import Callable
from typing import Any

LOOK_S = 0.5
"""Seconds between two looks at the connection."""
_ESTABLISHED = 1
"""Linux's state of a TCP connection that both sides hold open."""

_SIOCOUTQNSD = 0x894B
"""Linux's question for the bytes that wait in the kernel and are not sent (linux/sockios.h)."""


class ClientLeft(Exception):
    """The client has left."""


class Pause:
    """Stands in for Hypercorn's event; `wait` raises `ClientLeft`."""

    __slots__ = ("_event", "_has_left")

    def __init__(self, event: Any, has_left: Callable[[], bool]) -> None:
        self._event = event
        self._has_left = has_left

    async def set(self) -> None:
        """Let the next request be read."""
        await self._event.set()

    async def clear(self) -> None:
        """Begin to wait."""
        await self._event.clear()

    def is_set(self) -> bool:
        """Return whether `wait` would return at once."""
        return bool(self._event.is_set())

    async def wait(self) -> None:
        """Wait for `set`."""
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._event.wait()
                    return
            except TimeoutError:
                if self._has_left():
                    raise ClientLeft from None


def has_client_left(sock: Any) -> bool:
    """Return whether the other side of a TCP connection has closed it; false where none can tell.

    Linux knows it, even if much of what came before waits to be read.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except ValueError:  # of uvloop: this side has closed it
        return True
    except (OSError, AttributeError):
        return False
    return bool(info[0] != _ESTABLISHED)


def n_unsent(sock: Any) -> int:
    """Count the bytes for which the other side of a TCP connection has no room; 0 if unknown."""
    try:
        n = fcntl.ioctl(sock.fileno(), _SIOCOUTQNSD, bytes(4))
    except (OSError, ValueError):
        return 0
    return int.from_bytes(n, sys.byteorder)
