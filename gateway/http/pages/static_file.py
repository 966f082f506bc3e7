"""A file of the web page in memory: compressed once, and sent only to browsers that lack it."""

import asyncio
import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from starlette.requests import Request
from starlette.responses import Response

KINDS: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""Kinds of files that are served, by suffix; browsers run no module of another kind."""

FOREVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"


@dataclass(slots=True)
class StaticFile:
    """Content of one file, with what its responses need."""

    name: str
    body: bytes
    etag: str = ""
    packed: bytes = b""
    """The body compressed; empty until the first browser asks for it."""
    _packing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.etag = hashlib.sha256(self.body).hexdigest()[:20]

    async def response(
        self, request: Request, headers: Mapping[str, str], caching: str
    ) -> Response:
        """Answer a GET with the file, compressed if the client accepts it, or with 304."""
        is_packed = accepts_gzip(request.headers.get("accept-encoding", ""))
        tag = f'"{self.etag}{"-gz" if is_packed else ""}"'
        shared = {"ETag": tag, "Cache-Control": caching, "Vary": "Accept-Encoding", **headers}
        if is_known(tag, request.headers.get("if-none-match", "")):
            return Response(None, 304, shared)
        kind = KINDS[PurePath(self.name).suffix]
        if not is_packed:
            return Response(self.body, 200, shared, kind)
        return Response(await self._pack(), 200, {**shared, "Content-Encoding": "gzip"}, kind)

    async def _pack(self) -> bytes:
        async with self._packing:
            if not self.packed:
                # Up to 15 ms for the largest file: too long for the event loop.
                self.packed = await asyncio.to_thread(gzip.compress, self.body, 9, mtime=0)
        return self.packed


def accepts_gzip(header: str) -> bool:
    """Return whether an Accept-Encoding header names gzip without refusing it (`q=0`)."""
    for item in header.lower().split(","):
        coding, _, weight = item.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "").rstrip("0").rstrip(".") not in ("q=", "q=0")
    return False


def is_known(tag: str, header: str) -> bool:
    """Return whether an If-None-Match header names this entity tag, weak or strong."""
    known = {item.strip().removeprefix("W/") for item in header.split(",")}
    return tag in known or "*" in known
