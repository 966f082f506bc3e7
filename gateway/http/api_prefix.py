"""`--api-prefix`: everything is served below a path, and nothing beside it."""

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.errors import FILE_NOT_FOUND, refused_response
from protocol.errors import ConfigError


class PrefixMiddleware:
    """Takes the prefix off the path; a request without it is File Not Found."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on under the path behind the prefix."""
        path = scope.get("path", "")
        if scope["type"] == "http" and self._prefix:
            if not path.startswith(f"{self._prefix}/"):
                await refused_response(FILE_NOT_FOUND)(scope, receive, send)
                return
            # In place: the access log reads from this very scope which route answered.
            scope["path"] = path[len(self._prefix) :]
        await self._app(scope, receive, send)


def read_prefix(text: str) -> str:
    """Check a prefix and drop the slash at its end; raises `ConfigError`."""
    prefix = text.rstrip("/")
    if prefix and (not prefix.startswith("/") or "//" in prefix or "?" in prefix or "#" in prefix):
        raise ConfigError(f"--api-prefix {text}: must be a path such as /llama")
    return prefix
