"""One kept stream: the bytes of an answer as they come, for readers that begin anywhere in it.

It does no I/O. What is dropped from its beginning is lost; offsets count from the first byte.
"""

import asyncio
import time

from starlette.types import Message

PIECE = 64 * 1024
"""Bytes that a reader gets at once: each reader holds a copy."""
MAX_BYTES = 4 * 1024 * 1024
"""Bytes kept of one stream, the latest; llama-server's number."""


class OffsetLost(Exception):
    """What was asked for is no longer kept."""


class StreamSession:
    """One answer. It is over when nothing will be added; then it is whole, stopped or broken."""

    def __init__(self, key: str, conversation_id: str) -> None:
        self.key = key
        self.conversation_id = conversation_id
        self.started_at = int(time.time())
        self.completed_at = 0
        """Unix time; 0 until it is over."""
        self.head: Message | None = None
        """Status and headers of the answer."""
        self.is_loading = True
        """Whether its request still waits for its model."""
        self.is_whole = False
        """Whether the body came to its own end."""
        self.is_stopped = False
        """Whether a client has ended it."""
        self.n_dropped = 0
        """Bytes that are no longer kept."""
        self.n_readers = 0
        self._data = bytearray()
        self._stop = asyncio.Event()
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def is_over(self) -> bool:
        """Whether nothing will be added."""
        return bool(self.completed_at)

    @property
    def n_bytes(self) -> int:
        """Return how much of it is kept."""
        return len(self._data)

    @property
    def total_bytes(self) -> int:
        """Return how much there was of it."""
        return self.n_dropped + len(self._data)

    def loaded(self) -> None:
        """Note that its request has its model."""
        self.is_loading = False

    def take(self, message: Message) -> None:
        """Add a message of ASGI, unless the session is over."""
        if self.is_over:
            return
        if message["type"] == "http.response.start":
            self.head = message
        else:
            self._data += message.get("body", b"")
            self.is_whole = not message.get("more_body", False)
        self._wake()

    def drop(self, n: int) -> None:
        """Forget the first of the bytes that are kept, if `n` is more than 0."""
        n = min(max(n, 0), len(self._data))
        del self._data[:n]
        self.n_dropped += n

    def finish(self) -> None:
        """Refuse all later bytes; idempotent."""
        if not self.is_over:
            self.completed_at = int(time.time())
            self._wake()

    def stop(self, *, by_client: bool = True) -> None:
        """End it, and let its handler see that its client has left."""
        self.is_stopped = self.is_stopped or by_client
        self._stop.set()
        self.finish()

    async def wait_stopped(self) -> None:
        """Wait until it is ended before its time."""
        await self._stop.wait()

    async def wait_for_head(self) -> None:
        """Wait for the head, or for the end."""
        while self.head is None and not self.is_over:
            await self._changed()

    async def read(self, offset: int) -> bytes:
        """Wait for what follows an offset; empty at the end. Raises `OffsetLost`."""
        while True:
            if offset < self.n_dropped:
                raise OffsetLost
            at = offset - self.n_dropped
            if at < len(self._data):
                return bytes(self._data[at : at + PIECE])
            if self.is_over:
                return b""
            await self._changed()

    async def _changed(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
