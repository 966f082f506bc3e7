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
_ARRIVAL_S = 0.5
"""Time for the first request of a connection that was accepted just before the end, more than a
round trip around the world; it begins anew while others are answered."""
_MANY_WAIT = 16
"""Clients in the backlog at which those that have left are dropped."""
_MAX_DROPPED = 256
"""Clients that are dropped in one turn of the loop, at 10 us each."""
_MAX_ACCEPTED = 64
"""Clients that are accepted in one turn of the loop, at 100 us each."""
_BUSY_EACH = 4
"""Busy clients for each one that is accepted in a turn beside the first: the more are busy, the
longer the turn. An idle gateway accepts one, so that others on its socket get some of a burst."""
_FEW_HANDSHAKES = 16
"""TLS handshakes that may be open beyond the limit of connections."""
_PAUSE_S = 0.1
"""Seconds until it tries again where no client could be accepted."""
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
        self._handshakes: dict[socket.socket, asyncio.Task[None]] = {}
        """Clients whose TLS has begun, the oldest first."""
        self._ending: set[asyncio.Task[None]] = set()
        """Handshakes that were ended."""
        self._accepting: list[socket.socket] = []
        """Listening sockets of TLS clients."""
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_cutting = False

    async def start(self) -> None:
        """Begin to accept on all sockets, which belong to this server from now on."""
        if self._config.ssl_enabled:
            limit_s = self._config.ssl_handshake_timeout
            self._tls = {"ssl": self._config.create_ssl_context(), "ssl_handshake_timeout": limit_s}
        for sock in self._socks:
            if self._tls:
                sock.setblocking(False)
                sock.listen(self._config.backlog)
                self._accepting.append(sock)
                self._listen_tls(sock)
                continue
            accepted, backlog = partial(self._accepted, sock), self._config.backlog
            self._servers.append(await asyncio.start_server(accepted, sock=sock, backlog=backlog))

    def retire(self) -> None:
        """Stop accepting; each open connection is served until its next answer or its end."""
        self._stop_accepting()
        self._config.connections.retire()

    async def emptied(self) -> None:
        """Wait until no connection is open, and none whose TLS has begun."""
        while waiting := {*self._tasks, *self._handshakes.values()}:
            await asyncio.wait(waiting)

    async def answer_last(self, *, limit_s: float) -> None:
        """Stop accepting, and answer whoever was accepted just now: a request is on its way.

        A client of a new connection that is closed does not try again, as that of an idle one does.
        """
        self.retire()
        self._config.connections.close_idle(new=False)
        await asyncio.sleep(0)  # what was accepted in this turn of the loop begins
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while waiting := {*self._tasks, *self._handshakes.values()}:
                    ended, _ = await asyncio.wait(
                        waiting, timeout=_ARRIVAL_S, return_when=asyncio.FIRST_COMPLETED
                    )
                    if not ended:
                        return

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

    async def _accepted(
        self,
        listener: socket.socket,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Serve a client that the loop has accepted, and accept some of those behind it."""
        n_waiting = _n_waiting(listener)
        # Of few that wait one is served: perhaps it has only ended its half of the connection.
        has_left = n_waiting >= _MANY_WAIT and has_client_left(writer.get_extra_info("socket"))
        n_more = min(_MAX_ACCEPTED, self._config.connections.n_busy // _BUSY_EACH)
        self._accept(listener, max(n_more, has_left), n_waiting)
        if has_left:
            writer.transport.abort()
        else:
            await self._serve(reader, writer)

    def _accept(self, listener: socket.socket, n: int, n_waiting: int) -> None:
        """Accept so many clients from the backlog; of many, those that have left are dropped.

        uvloop accepts one in a turn: beside 1,000 busy clients a new one waited for 5 s.
        """
        for _ in range(_MAX_DROPPED):
            if not n:
                return
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            if n_waiting >= _MANY_WAIT and has_client_left(sock):
                sock.close()
            else:
                self._keep(asyncio.create_task(self._open(sock)))
                n -= 1

    async def _open(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        with contextlib.suppress(OSError):  # it leaves just now, or its TLS fails
            await loop.connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader, self._serve), sock, **self._tls
            )

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _listen_tls(self, listener: socket.socket) -> None:
        """Accept clients; asyncio's server neither counts nor ends those that do not go on.

        No task: one that is cancelled just when it has accepted a client would drop it.
        """
        if listener in self._accepting:
            loop = asyncio.get_running_loop()
            loop.add_reader(listener, self._accept_tls, listener)

    def _accept_tls(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # another gateway has it; it has left
            return
        except OSError:  # no descriptor is free
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            loop.call_later(_PAUSE_S, self._listen_tls, listener)
            return
        self._handshakes[sock] = asyncio.create_task(self._shake_hands(sock))
        self._end_oldest_handshake()

    async def _shake_hands(self, sock: socket.socket) -> None:
        try:
            await self._open(sock)
        finally:
            self._handshakes.pop(sock, None)

    def _end_oldest_handshake(self) -> None:
        """End the oldest handshake, if with all of them there are too many connections."""
        n = len(self._handshakes)
        if n > _FEW_HANDSHAKES and not self._config.connections.has_room(n):
            oldest = next(iter(self._handshakes))
            self._ending.add(task := self._handshakes.pop(oldest))
            task.add_done_callback(self._ending.discard)
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)

    def _stop_accepting(self) -> None:
        accepting, self._accepting = self._accepting, []
        for listener in accepting:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._keep(task)
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
