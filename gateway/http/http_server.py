"""Hypercorn's connections on our listening sockets.

`hypercorn.asyncio.serve` can only stop all at once: it stops to accept, closes idle connections
under clients that may be sending, and refuses further requests of HTTP/2. A gateway that another
one replaces must go on to answer those who are connected, so this module does the accepting.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.worker_context import WorkerContext
from starlette.types import ASGIApp

from gateway.http.connections import ServerConfig, connection_class

_CUT_S = 1.0
"""Time for connections to end after they were cut."""


class HttpServer:
    """Accepts connections and serves an application to them; it sends no lifespan events."""

    def __init__(self, app: ASGIApp, config: ServerConfig, socks: Sequence[socket.socket]) -> None:
        own: Any = app  # Hypercorn has ASGI types of its own
        self._app = ASGIWrapper(own)
        self._config = config
        self._socks = socks
        self._context = WorkerContext(None)
        self._connect = connection_class()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_cutting = False

    def __repr__(self) -> str:
        return f"<HttpServer listeners={len(self._servers)} connections={len(self._tasks)}>"

    async def start(self) -> None:
        """Begin to accept on all sockets, which belong to this server from now on."""
        tls = self._config.create_ssl_context() if self._config.ssl_enabled else None
        limit_s = self._config.ssl_handshake_timeout if tls else None
        for sock in self._socks:
            server = await asyncio.start_server(
                self._serve,
                sock=sock,
                backlog=self._config.backlog,
                ssl=tls,
                ssl_handshake_timeout=limit_s,
            )
            self._servers.append(server)

    def retire(self) -> None:
        """Stop accepting; each open connection is served until its next answer or its end."""
        self._stop_accepting()
        self._config.connections.retire()

    async def emptied(self) -> None:
        """Wait until no connection is open."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self, *, grace_s: float) -> None:
        """Stop accepting, close idle connections at once and the others after `grace_s`."""
        self._stop_accepting()
        await self._context.terminated.set()
        self._config.connections.close_idle()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        self._is_cutting = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CUT_S)

    def _stop_accepting(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        loop, state = asyncio.get_running_loop(), self._context
        try:
            await self._connect(self._app, loop, self._config, state, {}, reader, writer)
        except asyncio.CancelledError:
            if not self._is_cutting:  # else asyncio would log each connection that `close` cuts
                raise
        finally:
            # Hypercorn closes it; a cancel at the wrong moment must not leave the socket open.
            if not writer.is_closing():
                writer.transport.abort()
