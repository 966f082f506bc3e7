"""Which web pages may do what: the names under which a server is asked for, and pages of others.

A browser lets any page send requests to any address, `localhost` too. Two headers that pages cannot
write tell them apart: `Host` names the server as the browser knows it, `Origin` names the page.
"""

import ipaddress
import re
import urllib.parse
from collections.abc import Iterable, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.errors import RequestRefused, refused_response
from gateway.http.listener import hosts, is_local
from protocol.config.config import GatewayConfig

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@]+)(?::[0-9]{0,5})?")
_ANY = "*"


class HostMiddleware:
    """Refuses requests under a name that is not this server's.

    A page can point its own name at this host (DNS rebinding) and then read everything, because to
    the browser the server is the page's own. Addresses cannot be pointed elsewhere: all are let in.
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
            await refused_response(refusal, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _takes(self, scope: Scope) -> bool:
        if self._names is None:
            return True
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        if not host:  # browsers send it always
            return True
        name = host_name(host.decode("latin-1"))
        return name in self._names or _is_address(name)


def allowed_names(config: GatewayConfig, *, is_open: bool) -> frozenset[str] | None:
    """Return the names under which the server answers; None is any.

    Where only this host reaches it and no key protects it, its own; others must be named.
    """
    named = {name.lower() for name in config.allowed_hosts}
    if _ANY in named or not (named or (is_open and is_local(config))):
        return None
    return frozenset({*named, *LOCAL_NAMES, *(host.lower() for host in hosts(config))})


def host_name(text: str) -> str:
    """Return the name in a Host header, without its port; empty if it is not readable."""
    match = _HOST.fullmatch(text.strip())
    return match[1].strip("[]").rstrip(".").lower() if match else ""


def is_foreign_page(headers: Iterable[tuple[bytes, bytes]], origins: Sequence[str]) -> bool:
    """Tell whether a page of another site sends a request.

    Its own pages, those of this very host and the origins that the configuration names are not
    foreign; `*` names nobody. Programs send no such header.
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
    """Return name and port of an origin; empty for `null` and what is none."""
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
