"""Fetches a media file by GET: bounded in size and time, from allowed hosts only.

The name is resolved once, every address is checked, and the connection goes to a checked address:
a second look-up could give another one. Redirects are checked like the first URL. Proxies of the
environment are not used, because they would resolve the name themselves.
"""

import asyncio
import logging
import socket
import ssl
import time
from asyncio.staggered import staggered_race
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from urllib.parse import urljoin

import h11

from gateway.media.allow import AllowedUrls, UrlTarget, read_url

logger = logging.getLogger(__name__)

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 3
"""Redirects that are followed for one file."""
_HEAD_START_S = 0.25
"""Seconds after which the next address of a host is tried beside those before, as in RFC 8305."""
_CHUNK = 16 * 1024
"""Bytes that are read at once."""
_TURN_S = 0.0005
"""Seconds of reading after which the loop turns: 16 KB in chunks of one byte take 40 ms."""
_UNTYPED = frozenset({"", "application/octet-stream", "binary/octet-stream"})
"""Types that object stores give for any file; the decoder detects the format."""


class NotFetched(Exception):
    """The file was not fetched; the text is for the client."""


@dataclass(frozen=True, slots=True)
class _Fetched:
    status: int
    location: str = ""
    body: bytes = b""


class Fetcher:
    """Fetches URLs that the patterns allow."""

    def __init__(self, allowed: AllowedUrls, max_bytes: int, timeout_s: float) -> None:
        self._allowed = allowed
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def get(self, url: str, kind: str) -> bytes:
        """Return the file of a URL; `kind` is `image` or `audio`. Raises `NotFetched`."""
        hosts: list[str] = []
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(url, kind, hosts)
        except TimeoutError as error:
            cause = f"not fetched within {self._timeout_s:g} s"
            logger.info("media not fetched", extra={"host": hosts[-1], "cause": cause})
            raise NotFetched(cause) from error

    async def _follow(self, url: str, kind: str, hosts: list[str]) -> bytes:
        """Fetch a URL, and what it leads to; `hosts` gets the host of each."""
        for _ in range(_MAX_REDIRECTS + 1):
            target = self._checked_target(url)
            hosts.append(target.host)
            answer = await self._answer(target, kind)
            if answer.status == 200:
                logger.info(
                    "media fetched", extra={"host": target.host, "size_bytes": len(answer.body)}
                )
                return answer.body
            if answer.status not in _REDIRECTS or not answer.location:
                raise NotFetched(f"its server answered with {answer.status}")
            try:
                url = urljoin(url, answer.location)
            except ValueError as error:
                raise NotFetched("its server leads to what is no URL") from error
            if target.scheme == "https" and not url.startswith("https:"):
                raise NotFetched("its server leads from https to something else")
        raise NotFetched(f"its server leads on more than {_MAX_REDIRECTS} times")

    def _checked_target(self, url: str) -> UrlTarget:
        try:
            target = read_url(url)
        except ValueError as error:
            raise NotFetched(f"the URL {error}") from error
        if not self._allowed.takes_host(target):
            raise NotFetched(f"{target.authority} is not a host that this server fetches from")
        return target

    async def _answer(self, target: UrlTarget, kind: str) -> _Fetched:
        try:
            return await self._ask(target, await self._resolve(target), kind)
        except (OSError, UnicodeError, h11.RemoteProtocolError) as error:
            # Never the URL: its query may hold a secret.
            logger.info("media not fetched", extra={"host": target.host, "cause": repr(error)})
            raise NotFetched("cannot be fetched") from error

    async def _resolve(self, target: UrlTarget) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        # One forbidden address refuses the host: a mixed answer is a sign of an attack.
        takes = self._allowed.takes_address
        if not addresses or not all(takes(address, target) for address in addresses):
            raise NotFetched(f"{target.host} has an address that this server does not fetch from")
        return addresses

    async def _ask(self, target: UrlTarget, addresses: Sequence[str], kind: str) -> _Fetched:
        reader, writer = await self._connect(target, addresses)
        try:
            connection = h11.Connection(h11.CLIENT)
            writer.write(_request(connection, target))
            await writer.drain()
            return await self._read(connection, reader, kind)
        finally:
            writer.transport.abort()

    async def _connect(
        self, target: UrlTarget, addresses: Sequence[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the first address that answers; each gets a head start (RFC 8305)."""
        is_tls = target.scheme == "https"
        connects = [
            partial(
                asyncio.open_connection,
                address,
                target.port,
                ssl=self._tls if is_tls else None,
                server_hostname=target.host if is_tls else None,
            )
            for address in addresses
        ]
        found: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None
        found, _, errors = await staggered_race(connects, _HEAD_START_S)
        if found is not None:
            return found
        raise next(error for error in reversed(errors) if error is not None)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    async def _read(
        self, connection: h11.Connection, reader: asyncio.StreamReader, kind: str
    ) -> _Fetched:
        body = bytearray()
        since = time.perf_counter()
        while True:
            # To read does not turn the loop while there is something to read.
            if time.perf_counter() - since > _TURN_S:
                await asyncio.sleep(0)
                since = time.perf_counter()
            event = connection.next_event()
            match event:
                case h11.NEED_DATA:
                    connection.receive_data(await reader.read(_CHUNK))
                case h11.Response():
                    headers = _headers(event)
                    if event.status_code != 200:
                        return _Fetched(event.status_code, headers.get("location", ""))
                    self._check(headers, kind)
                case h11.Data():
                    body += event.data
                    if len(body) > self._max_bytes:
                        raise self._too_large()
                case h11.EndOfMessage():
                    return _Fetched(200, body=bytes(body))

    def _check(self, headers: dict[str, str], kind: str) -> None:
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if not media_type.startswith(f"{kind}/") and media_type not in _UNTYPED:
            raise NotFetched(f"is {media_type}, not {kind}/*")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise NotFetched("is sent compressed")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:18]) > self._max_bytes:
            raise self._too_large()

    def _too_large(self) -> NotFetched:
        return NotFetched(f"is larger than {self._max_bytes >> 20} MiB")


def _headers(response: h11.Response) -> dict[str, str]:
    return {name.decode(): text.decode("latin-1") for name, text in response.headers}


def _request(connection: h11.Connection, target: UrlTarget) -> bytes:
    headers = [
        ("Host", target.authority),
        ("User-Agent", "llamapool"),
        ("Accept", "*/*"),
        ("Accept-Encoding", "identity"),
        ("Connection", "close"),
    ]
    request = h11.Request(method="GET", target=target.path, headers=headers)
    return (connection.send(request) or b"") + (connection.send(h11.EndOfMessage()) or b"")
