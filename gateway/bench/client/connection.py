"""HTTP/1.1 client of the load generator: h11 over asyncio's streams, with reused connections."""

import asyncio
import os
import re
import socket
import ssl
import struct
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from gateway.bench.client.transcript import Failure

_READ = 1 << 16
"""Bytes read at once."""


class RequestFailed(Exception):
    """A request did not get its whole answer."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message


@dataclass(frozen=True, slots=True)
class Address:
    """Host, port and path of a base URL."""

    host: str
    port: int
    is_tls: bool
    prefix: str
    """Path before every endpoint, without `/v1`."""

    @property
    def authority(self) -> str:
        """Return the value of the header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


def address_of(url: str) -> Address:
    """Read a base URL, with or without `/v1`; raises `ValueError`."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    wrong = f"'{url}' is not the URL of a server: use http://HOST:PORT"
    try:
        host = (parts.hostname or "").encode("idna").decode()
    except UnicodeError as error:
        raise ValueError(f"{wrong}; no host has such a name") from error
    is_plain = re.fullmatch(r"[\x21-\x7e]*", host + parts.path)
    if parts.scheme not in ("http", "https") or not host or not is_plain:
        raise ValueError(wrong)
    is_tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Address(host, parts.port or (443 if is_tls else 80), is_tls, prefix)


class BenchConnection:
    """One connection; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.is_reused = False
        self.headers: dict[str, str] = {}
        """Headers of the last answer, names in lower case."""
        self._reader = reader
        self._writer = writer
        self._h11 = h11.Connection(h11.CLIENT)
        self._is_over = False

    async def send(self, request: h11.Request, body: bytes) -> None:
        """Send a request."""
        try:
            data = self._h11.send(request) or b""
            if body:
                data += self._h11.send(h11.Data(data=body)) or b""
            self._writer.write(data + (self._h11.send(h11.EndOfMessage()) or b""))
            await self._writer.drain()
        except OSError as error:
            raise RequestFailed(Failure.BROKEN, str(error)) from error

    async def status(self) -> int:
        """Wait for the head of the answer."""
        while True:
            event = self._next()
            if isinstance(event, h11.Response):
                self.headers = {k.decode(): v.decode("latin-1") for k, v in event.headers}
                return event.status_code
            if event is h11.NEED_DATA:
                await self._receive()
            elif not isinstance(event, h11.InformationalResponse):
                raise RequestFailed(Failure.BROKEN, "the server closed the connection")

    async def more(self) -> bytes:
        """Return the next piece of the body; empty at its end."""
        found: list[bytes] = []
        while not self._is_over:
            event = self._next()
            if type(event) is h11.Data:
                found.append(event.data)
            elif event is not h11.NEED_DATA:
                self._is_over = True
            elif found:
                break
            else:
                await self._receive()
        return b"".join(found)

    async def rest(self) -> bytes:
        """Return the whole body."""
        found = []
        while data := await self.more():
            found.append(data)
        return b"".join(found)

    def again(self) -> bool:
        """Prepare for the next request, if both sides keep the connection open."""
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        self._is_over = False
        self.is_reused = True
        return not self._reader.at_eof()

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    def reset(self) -> None:
        """Hang up with an RST, as a client that was killed with unread data."""
        raw: socket.socket = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def _next(self) -> object:
        try:
            return self._h11.next_event()
        except h11.RemoteProtocolError as error:
            raise RequestFailed(Failure.BROKEN, str(error)) from error

    async def _receive(self) -> None:
        try:
            data = await self._reader.read(_READ)
            self._h11.receive_data(data)
        except OSError as error:
            raise RequestFailed(Failure.BROKEN, str(error)) from error


class Client:
    """Idle and busy connections to one server."""

    def __init__(self, url: str, api_key: str = "") -> None:
        self.address = address_of(url)
        self._idle: list[BenchConnection] = []
        self._ssl = ssl.create_default_context() if self.address.is_tls else None
        self._headers = [
            (b"Host", self.address.authority.encode()),
            (b"User-Agent", b"llamapool-bench"),
            (b"Accept", b"*/*"),
        ]
        if api_key:
            self._headers.append((b"Authorization", b"Bearer " + os.fsencode(api_key)))

    async def open(self, method: str, path: str, body: bytes = b"") -> tuple[BenchConnection, int]:
        """Send a request and wait for its status; the caller reads the body."""
        headers = [*self._headers]
        if body:
            headers.append((b"Content-Type", b"application/json"))
            headers.append((b"Content-Length", b"%d" % len(body)))
        target = self.address.prefix + path
        request = h11.Request(method=method, target=target, headers=headers)
        while True:
            connection = self._idle.pop() if self._idle else await self._dial()
            try:
                await connection.send(request, body)
                return connection, await connection.status()
            except BaseException as error:
                connection.close()
                # The server may have closed a kept connection just now: that is no answer yet.
                if not isinstance(error, RequestFailed) or not connection.is_reused:
                    raise

    async def get(self, path: str) -> bytes:
        """Return the body of a page; raises `RequestFailed` if there is none."""
        return await self.fetch("GET", path)

    async def fetch(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return the body of an answer; raises `RequestFailed` for a refusal."""
        connection, status = await self.open(method, path, body)
        data = await connection.rest()
        self.done(connection)
        if status != 200:
            raise RequestFailed(Failure.REFUSED, f"{path}: status {status}")
        return data

    def done(self, connection: BenchConnection) -> None:
        """Take a connection back; one that cannot be used again is closed."""
        if connection.again():
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close all that are idle."""
        while self._idle:
            self._idle.pop().close()

    async def _dial(self) -> BenchConnection:
        try:
            reader, writer = await asyncio.open_connection(
                self.address.host, self.address.port, ssl=self._ssl
            )
        except OSError as error:
            raise RequestFailed(Failure.CONNECT, str(error)) from error
        return BenchConnection(reader, writer)
