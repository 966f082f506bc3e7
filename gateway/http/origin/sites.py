"""Protection against web pages of other sites, by the headers `Host` and `Origin`.

A browser lets any page send requests to any address, including `localhost`. Pages cannot set these
two headers: `Host` is the name under which the browser reached the server, `Origin` is the page's.
"""

import ipaddress
import re
import urllib.parse
from collections.abc import Iterable, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.errors import RequestRefused, refused_response
from protocol.config.config import GatewayConfig
from protocol.process.listening import hosts, is_local

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@]+)(?::[0-9]{0,5})?")
_ANY = "*"


class HostMiddleware:
    """Refuses requests whose `Host` is not a name of this server.

    A page can point its own name at this host (DNS rebinding) and then read all answers, because
    the browser takes the server for the page's own. IP addresses cannot be abused so; all pass.
    """

    def __init__(self, app: ASGIApp, config: GatewayConfig, *, is_open: bool) -> None:
        self._app = app
        self._names = allowed_names(config, is_open=is_open)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on or refuse it."""
        if scope["type"] == "http" and scope.get("client") and not self._takes(scope):
            message = (
                "This server is not known under the name of the request's Host header: "
                "name it with --allowed-hosts, or set an API key"
            )
            refusal = RequestRefused(403, message, "permission_error")
            await refused_response(refusal, scope)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _takes(self, scope: Scope) -> bool:
        if self._names is None:
            return True
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        if not host:  # browsers always send it
            return True
        name = host_name(host.decode("latin-1"))
        return name in self._names or _is_address(name)


def allowed_names(config: GatewayConfig, *, is_open: bool) -> frozenset[str] | None:
    """Return the names under which the server answers; None means any.

    They are restricted if only this host can reach the server and no key protects it.
    """
    named = {name.lower() for name in config.allowed_hosts}
    if _ANY in named or not (named or (is_open and is_local(config))):
        return None
    return frozenset({*named, *LOCAL_NAMES, *(host.lower() for host in hosts(config))})


def host_name(text: str) -> str:
    """Return the name in a Host header without its port; empty if the header is malformed."""
    match = _HOST.fullmatch(text.strip())
    return match[1].strip("[]").rstrip(".").lower() if match else ""


def is_foreign_page(headers: Iterable[tuple[bytes, bytes]], origins: Sequence[str]) -> bool:
    """Return whether a page of another site has sent the request.

    Pages of the server, of this host and of the configured origins are not foreign; `*` does not
    count as an origin. Programs that are not browsers send no `Origin`.
    """
    found = {name: value.decode("latin-1") for name, value in headers if name in _PAGE_HEADERS}
    origin = found.get(b"origin", "")
    if not origin:
        return found.get(b"sec-fetch-site") == "cross-site"
    if origin in origins:
        return False
    where = page_host(origin)
    return where != (found.get(b"host") or "").lower() and host_name(where) not in LOCAL_NAMES


_PAGE_HEADERS = (b"origin", b"host", b"sec-fetch-site")


def page_host(origin: str) -> str:
    """Return host and port of an origin; empty for `null` and malformed values."""
    try:
        return urllib.parse.urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
