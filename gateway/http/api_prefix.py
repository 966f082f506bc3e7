"""`--api-prefix`: all endpoints are served below this path, and nothing outside of it."""

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.errors import FILE_NOT_FOUND, refused_response
from protocol.errors import ConfigError

_ROUTE = re.compile(r"/[^{}?#\s]*")
"""A path without parameters: braces are Starlette's."""


class PrefixMiddleware:
    """Removes the prefix from the path; a path without it is answered with File Not Found."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with the prefix removed."""
        path = scope.get("path", "")
        if scope["type"] == "http" and self._prefix:
            if not path.startswith(f"{self._prefix}/"):
                await refused_response(FILE_NOT_FOUND)(scope, receive, send)
                return
            # Changed in place: the access log reads the route from this scope.
            scope["path"] = path[len(self._prefix) :]
        await self._app(scope, receive, send)


def read_prefix(text: str) -> str:
    """Check a prefix and remove its trailing slash; raises `ConfigError`."""
    prefix = text.rstrip("/")
    is_path = prefix.startswith("/") and prefix.isprintable() and "//" not in prefix
    if prefix and (not is_path or "?" in prefix or "#" in prefix):
        raise ConfigError(f"--api-prefix {text}: must be a path such as /llama")
    return prefix


def read_route(text: str, name: str) -> str:
    """Check the path of an endpoint that the configuration adds; raises `ConfigError`."""
    if not _ROUTE.fullmatch(text):
        raise ConfigError(f"{name} {text}: must be a path such as /ping")
    return text
