"""The socket of the admin API: a process that can enter its folder needs no key to use it.

It is `admin.sock` in the runtime directory, which only the user of the server can enter. Several
gateways of one supervisor use one path: the newest has it, because each binds a name of its own and
renames it over the path. When nobody answers there any more, another one takes it.
"""

import asyncio
import contextlib
import logging
import os
import socket
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.connections import Connections, ServerConfig
from gateway.http.http_server import HttpServer
from gateway.http.origin.auth import OPERATOR
from gateway.metrics.counters import ConnectionCounts
from protocol.config.config import GatewayConfig

logger = logging.getLogger(__name__)

_BACKLOG = 16
"""Connections that wait to be accepted."""
_CONNECTIONS = 64
"""Open connections of operators' programs."""
_HEAD_S = 10.0
"""Seconds for the head of a request."""
_CHECK_S = 1.0
"""Seconds between two looks whether another gateway still answers on the socket."""


class AdminListener:
    """Serves the application on the admin socket; without a path it does nothing."""

    def __init__(self, app: ASGIApp, config: GatewayConfig) -> None:
        self._path = Path(config.admin_socket) if config.admin_socket else None
        self._app = _Operators(app, config.api_prefix)
        self._inode = 0
        self._server: HttpServer | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; a path that cannot be is logged, and the pool serves without it."""
        if self._path is None:
            return
        try:
            await self._take(self._path)
        except OSError as error:
            logger.error(
                "admin socket not open",
                extra={
                    "file": self._path,
                    "cause": error.strerror or error,
                    "action": "the admin API needs an admin's key",
                },
            )
            return
        self._watch = asyncio.create_task(self._keep_served(self._path))

    async def _take(self, path: Path) -> None:
        """Listen on the path, instead of the process that did before."""
        sock = self._bind(path)
        if self._server is not None:
            await self._server.close(grace_s=0)
        self._server = HttpServer(self._app, _settings(), [sock])
        await self._server.start()

    async def _keep_served(self, path: Path) -> None:
        """Take the path when the gateway that has it is gone."""
        while True:
            await asyncio.sleep(_CHECK_S)
            if not await self._is_served(path):
                with contextlib.suppress(OSError):  # the next look tries again
                    await self._take(path)

    async def _is_served(self, path: Path) -> bool:
        """Whether this gateway has the path, or another one answers there."""
        if self._has(path):
            return True
        try:
            async with asyncio.timeout(_CHECK_S):
                _, writer = await asyncio.open_unix_connection(path)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    def _bind(self, path: Path) -> socket.socket:
        own = path.with_name(f"{path.name}.{os.getpid()}")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            own.unlink(missing_ok=True)
            sock.bind(str(own))
            own.chmod(0o600)
            sock.listen(_BACKLOG)
            self._inode = own.stat().st_ino
            own.rename(path)
        except OSError:
            sock.close()
            with contextlib.suppress(OSError):
                own.unlink()
            raise
        return sock

    def _has(self, path: Path) -> bool:
        """Whether the path leads to this gateway's socket."""
        try:
            return path.stat().st_ino == self._inode
        except OSError:
            return False

    async def close(self) -> None:
        """Stop, and remove the path unless a newer gateway has it."""
        if self._server is None or self._path is None:
            return
        if self._watch is not None:
            self._watch.cancel()
        await self._server.close(grace_s=0)
        if self._has(self._path):
            self._path.unlink(missing_ok=True)


def _settings() -> ServerConfig:
    result = ServerConfig()
    result.connections = Connections(ConnectionCounts(), limit=_CONNECTIONS, head_s=_HEAD_S)
    result.backlog = _BACKLOG
    result.include_server_header = False
    result.errorlog = logging.getLogger("gateway.hypercorn")
    return result


class _Operators:
    """Marks requests of the admin socket, and adds the API prefix to their paths."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = self._prefix + scope["path"]
            scope = {**scope, OPERATOR: True, "path": path, "raw_path": path.encode()}
        await self._app(scope, receive, send)
