"""Watches the pages of a browser context: errors, broken policies, requests to other hosts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import BrowserContext, ConsoleMessage, WebError

_REFUSAL = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Strangers:
    """A proxy for all hosts but this one: it notes what it is asked for, and fetches nothing.

    To watch a page's requests from the test would take an event for each of its sixty files.
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Strangers"]:
        """Refuse requests and note them, until left."""
        server = await asyncio.start_server(self._refuse, "127.0.0.1", 0)
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            yield self

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if line := (await reader.readline()).decode():
                self.requests.append(line.rpartition(" ")[0][:200])
                writer.write(_REFUSAL)
                await writer.drain()
        finally:
            writer.close()


class Watched:
    """Notes what a page must not do; `allowed` holds parts of messages that a test expects."""

    def __init__(self, context: BrowserContext, strangers: Strangers) -> None:
        self.allowed: list[str] = []
        self._strangers = strangers
        self._noted: list[str] = []
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)

    def clear(self) -> None:
        """Forget what was noted and what was allowed: another test begins."""
        self.allowed.clear()
        self._noted.clear()
        self._strangers.requests.clear()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._noted.append(f"console: {message.text}")

    def _on_error(self, error: WebError) -> None:
        self._noted.append(f"uncaught: {error.error}")

    def faults(self) -> list[str]:
        """Return what was noted and not expected."""
        asked = [f"request to another host: {one}" for one in self._strangers.requests]
        return [
            text
            for text in (*self._noted, *asked)
            if not any(allowed in text for allowed in self.allowed)
        ]
