"""Requests whose target is a whole URL (`GET http://host/path HTTP/1.1`), as proxies send them.

RFC 9112, 3.2.2: a server takes them, and the authority of the URL replaces the `Host` header.
"""

import re
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

_TARGET = re.compile(rb"https?://([^/?#@]+)(/.*)?", re.IGNORECASE | re.DOTALL)


class AbsoluteTargetMiddleware:
    """Gives the layers below the path of such a URL, and its authority as `Host`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http" and not scope["path"].startswith("/"):
            _shorten(scope)
        await self._app(scope, receive, send)


def _shorten(scope: Scope) -> None:
    """Rewrite the target in place: other layers read the path from this scope."""
    match = _TARGET.fullmatch(scope["raw_path"])
    if match is None:
        return
    host, path = match[1], match[2] or b"/"
    headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
    scope["headers"] = [(b"host", host), *headers]
    scope["raw_path"] = path
    scope["path"] = unquote(path.decode("latin-1"))
