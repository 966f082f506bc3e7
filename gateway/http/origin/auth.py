"""Who sends a request, by its API key, and what that key may do.

If any key is configured, every path needs one, except the public paths. The tenant of the fair
queue is the name of the key, or without keys the client's address. A key opens what its scopes say;
without keys everything is open, but web pages of other sites cannot change the server.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.errors import EXPIRED_KEY, INVALID_KEY, RequestRefused, refused_response
from gateway.http.origin.client_address import tenant_of
from gateway.http.origin.request_origin import namespace
from gateway.http.origin.sites import is_foreign_page
from gateway.keys.api_key import EVERY_SCOPE, KEY, KeyScope
from gateway.keys.ring import KeyRing
from gateway.pool.requests.record import REQUEST, RequestRecord

PUBLIC_PATHS = frozenset({"/health", "/v1/health", "/livez", "/readyz"})

OPERATOR = "llamapool.operator"
"""Set in a scope by the listener of the admin socket; nothing that a client sends sets it."""
ADMIN_PREFIX = "/admin/"

_SCOPE_OF_PATH = {"/metrics": KeyScope.METRICS, "/pool/events": KeyScope.METRICS}
_NEEDS_ADMIN = "Only an admin's key may do this: it needs the scope 'admin'"
_NEEDS_SOCKET = (
    "This server has no keys, so the admin API answers on its host only, over the socket "
    "admin.sock in the runtime directory: `llamapool status` there finds it"
)
_NEEDS_OWN_PAGE = "A page of another site may not do this: name its origin with --cors-origins"


class AuthRules(NamedTuple):
    """Configuration of keys and pages."""

    isolation: str
    """`cache_isolation`."""
    origins: Sequence[str]
    """Origins whose pages may do what this server's own pages may."""
    public: frozenset[str]
    is_page: Callable[[str], bool]


class AuthMiddleware:
    """Answers 401 or 403, or identifies the client for the layers below.

    Sets `scope["tenant"]`; `scope["namespace"]` of its cache; `scope["key"]`, the name of its key,
    empty without keys; `scope["scopes"]`, what it may do; `scope["is_admin"]`, whether it may
    change the server for all; `scope["is_operator"]`, whether it came over the admin socket, which
    no key opens. The record of the request, if there is one, gets key and tenant.
    """

    def __init__(self, app: ASGIApp, ring: KeyRing, rules: AuthRules) -> None:
        self._app = app
        self._ring = ring
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["is_operator"] = bool(scope.get(OPERATOR))
        if not (self._ring.is_open or self._is_public(scope)):
            await self._ring.refresh()
        refusal = self._identify(scope)
        record: RequestRecord | None = scope.get(REQUEST)
        if record is not None:
            record.key, record.tenant = scope["key"], scope["tenant"]
        if refusal is not None:
            await refused_response(refusal, scope)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _identify(self, scope: Scope) -> RequestRefused | None:
        """Identify the client in the scope; returns the refusal, or None."""
        ring, rules = self._ring, self._rules
        path = scope["path"]
        if scope["is_operator"] and path.startswith(ADMIN_PREFIX):
            scope.update(_anonymous(scope, EVERY_SCOPE))
            return None
        if ring.is_open:
            is_own = not is_foreign_page(scope["headers"], rules.origins)
            scope.update(_anonymous(scope, EVERY_SCOPE if is_own else _OPEN_SCOPES))
            return None
        presented = presented_key(scope["headers"])
        key = ring.find(presented) if presented else None
        if key is None or key.expires_at <= time.time():
            scope.update(_anonymous(scope, frozenset()))
            return None if self._is_public(scope) else (EXPIRED_KEY if key else INVALID_KEY)
        scope["tenant"] = scope["key"] = key.name
        scope["namespace"] = namespace(rules.isolation, key.name, ring.n_keys)
        scope["scopes"], scope[KEY] = key.scopes, key
        scope["is_admin"] = KeyScope.ADMIN in key.scopes
        return None if self._is_public(scope) else _scope_refusal(scope, _scope_needed(path))

    def _is_public(self, scope: Scope) -> bool:
        if scope["path"] in self._rules.public:
            return "include_slots" not in Request(scope).query_params
        return scope["method"] in ("GET", "HEAD") and self._rules.is_page(scope["path"])


_OPEN_SCOPES = EVERY_SCOPE - {KeyScope.ADMIN}


def _anonymous(scope: Scope, scopes: frozenset[str]) -> dict[str, Any]:
    """Return what is known of a client without a key."""
    is_admin = KeyScope.ADMIN in scopes
    tenant = tenant_of(scope.get("address", ""))
    known = {"tenant": tenant, "namespace": "", "key": "", "scopes": scopes, KEY: None}
    return {**known, "is_admin": is_admin}


def _scope_needed(path: str) -> str:
    if path.startswith(ADMIN_PREFIX):
        return KeyScope.ADMIN
    return _SCOPE_OF_PATH.get(path, KeyScope.INFER)


def _scope_refusal(scope: Scope, name: str) -> RequestRefused | None:
    if name in scope["scopes"] or scope["is_admin"]:
        return None
    message = f"The key '{scope['key']}' lacks the scope '{name}'"
    message = _NEEDS_ADMIN if name == KeyScope.ADMIN else message
    return RequestRefused(403, message, "permission_error")


def require_scope(scope: Scope, name: str) -> None:
    """Raise `RequestRefused` unless the client has a scope."""
    refusal = _scope_refusal(scope, name)
    if refusal is not None:
        raise refusal


def require_path(scope: Scope, path: str) -> None:
    """Raise `RequestRefused` unless the client may ask for a path; keys are checked before."""
    if scope["key"]:
        require_scope(scope, _scope_needed(path))


def require_admin(scope: Scope) -> None:
    """Raise `RequestRefused` unless the client is an admin."""
    if not scope["is_admin"]:
        message = _NEEDS_ADMIN if scope["key"] else _NEEDS_OWN_PAGE
        raise RequestRefused(403, message, "permission_error")


def require_operator(scope: Scope) -> None:
    """Raise `RequestRefused` unless an admin's key or the admin socket lets the client in.

    Without keys an address alone would not do: behind a proxy on this host, or by a web page that
    a browser here shows, everybody comes from here.
    """
    if scope["is_operator"]:
        return
    if not scope["key"]:
        raise RequestRefused(403, _NEEDS_SOCKET, "permission_error")
    require_admin(scope)


class AdminOnly:
    """An endpoint that changes the server for all of its clients."""

    def __init__(self, endpoint: ASGIApp, require: Callable[[Scope], None] = require_admin) -> None:
        self._endpoint = endpoint
        self._require = require

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of an admin."""
        self._require(scope)
        await self._endpoint(scope, receive, send)


def presented_key(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the key of `Authorization` (with or without Bearer), or else of `X-Api-Key`."""
    found = {name: value for name, value in headers if name in _KEY_HEADERS}
    authorization = found.get(b"authorization", b"").strip()
    if authorization[:7].lower() == b"bearer ":
        authorization = authorization[7:].strip()
    key = authorization or found.get(b"x-api-key", b"").strip()
    return key.decode("utf-8", "surrogateescape")


_KEY_HEADERS = (b"authorization", b"x-api-key")
