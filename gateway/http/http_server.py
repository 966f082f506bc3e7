"""Hypercorn's connections on our listening sockets.

`hypercorn.asyncio.serve` can only stop all at once: it stops to accept, closes idle connections
under clients that may be sending, and refuses further requests of HTTP/2. A gateway that another
one replaces must go on to answer those who are connected, so this module does the accepting.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Sequence
from functools import partial
from typing import Any

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.worker_context import WorkerContext
from starlette.types import ASGIApp

from gateway.http.connections import ServerConfig, connection_class
from gateway.http.protocols.pause import has_client_left

_CUT_S = 1.0
"""Time for connections to end after they were cut."""
_MANY_WAIT = 16
"""Clients in the backlog at which those that have left are dropped."""
_MAX_DROPPED = 256
"""Clients that are dropped in one turn of the loop, at 10 us each."""
_BACKLOG_AT = 24
"""Where Linux's `tcp_info` of a listening socket has the number of those that wait."""


class HttpServer:
    """Accepts connections and serves an application to them; it sends no lifespan events."""

    def __init__(self, app: ASGIApp, config: ServerConfig, socks: Sequence[socket.socket]) -> None:
        own: Any = app  # Hypercorn has ASGI types of its own
        self._app = ASGIWrapper(own)
        self._config = config
        self._socks = socks
        self._context = WorkerContext(None)
        self._connect = connection_class()
        self._tls: dict[str, Any] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_cutting = False

    def __repr__(self) -> str:
        return f"<HttpServer listeners={len(self._servers)} connections={len(self._tasks)}>"

    async def start(self) -> None:
        """Begin to accept on all sockets, which belong to this server from now on."""
        if self._config.ssl_enabled:
            limit_s = self._config.ssl_handshake_timeout
            self._tls = {"ssl": self._config.create_ssl_context(), "ssl_handshake_timeout": limit_s}
        for sock in self._socks:
            serve, backlog = partial(self._serve, sock), self._config.backlog
            server = await asyncio.start_server(serve, sock=sock, backlog=backlog, **self._tls)
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

    async def _drop_absent(self, listener: socket.socket) -> None:
        """Drop the next clients that have left, and accept the first that has not."""
        for _ in range(_MAX_DROPPED):
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            if not has_client_left(sock):
                await self._open(listener, sock)
                return
            sock.close()

    async def _open(self, listener: socket.socket, sock: socket.socket) -> None:
        sock.setblocking(False)
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        serve = partial(self._serve, listener)
        with contextlib.suppress(OSError):  # it leaves just now, or its TLS fails
            await loop.connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader, serve), sock, **self._tls
            )

    def _stop_accepting(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()

    async def _serve(
        self,
        listener: socket.socket,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        # Of few that wait one is served: perhaps it has only ended its half of the connection.
        if _n_waiting(listener) >= _MANY_WAIT and has_client_left(writer.get_extra_info("socket")):
            writer.transport.abort()
            await self._drop_absent(listener)
            return
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


def _n_waiting(listener: socket.socket) -> int:
    """Count the clients in the backlog; 0 where the system does not tell."""
    try:
        info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BACKLOG_AT + 4)
    except (OSError, AttributeError):
        return 0
    return int(struct.unpack_from("=I", info, _BACKLOG_AT)[0])
