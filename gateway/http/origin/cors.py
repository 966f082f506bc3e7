"""Cross-origin requests: which web pages may call from a browser, with llama-server's options."""

import re
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.header_case import Headers, spelled_for
from gateway.http.origin.rate_limits import LIMIT_HEADERS
from gateway.http.origin.sites import LOCAL_NAMES, host_name, page_host
from gateway.http.route_headers import ROUTE_HEADERS
from protocol.config.config import GatewayConfig

_ORIGIN = re.compile(rb"[\x21-\x7e]{1,512}")
"""A possible origin; any other value is not echoed and counts as none."""
_EXPOSED = (
    b"Access-Control-Expose-Headers",
    ", ".join(("x-request-id", "retry-after", *ROUTE_HEADERS, *LIMIT_HEADERS)).encode(),
)


class CorsMiddleware:
    """Answers every OPTIONS request without a key, and adds CORS headers to other responses."""

    def __init__(self, app: ASGIApp, config: GatewayConfig) -> None:
        self._app = app
        self._origins = config.cors_origins
        self._has_credentials = config.cors_credentials
        self._preflight: Headers = [
            (b"Access-Control-Allow-Credentials", b"true" if self._has_credentials else b"false"),
            (b"Access-Control-Allow-Methods", _joined(config.cors_methods)),
            (b"Access-Control-Allow-Headers", _joined(config.cors_headers)),
            (b"content-type", b"text/html"),
            (b"content-length", b"0"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a preflight, or add the headers to the response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")
        allowed = allowed_origin(origin, self._origins, echoes=self._has_credentials)
        own: Headers = [(b"Access-Control-Allow-Origin", allowed)] if allowed else []
        if scope["method"] == "OPTIONS":
            headers = spelled_for([*own, *self._preflight], scope)
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        if not origin or not own:
            await self._app(scope, receive, send)
            return
        if self._has_credentials and "*" not in self._origins:
            own.append((b"Access-Control-Allow-Credentials", b"true"))
        own += [(b"vary", b"origin"), _EXPOSED]
        own = spelled_for(own, scope)

        async def allow(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        await self._app(scope, receive, allow)


def allowed_origin(origin: bytes, origins: Sequence[str], *, echoes: bool) -> bytes:
    """Return the origin that the answer allows, or an empty string.

    With credentials the origin is echoed, because browsers refuse `*` then. For a list of origins
    llama-server sends the whole list, which no browser accepts; this sends the matching one.
    """
    if not _ORIGIN.fullmatch(origin):
        origin = b""
    if "*" in origins:
        return origin if echoes and origin else b"*"
    text = origin.decode("latin-1")
    if not text:
        return b""
    is_local = "localhost" in origins and host_name(page_host(text)) in LOCAL_NAMES
    return origin if is_local or text in origins else b""


def _joined(names: Sequence[str]) -> bytes:
    return ", ".join(names).encode("latin-1")
