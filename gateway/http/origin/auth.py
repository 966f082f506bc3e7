"""API keys: who may use the API, and who is an admin. Keys are kept as digests; key files are read
again when they change.

If any key is configured, every path needs one, except the public paths. The tenant of the fair
queue is a short digest of the key, or without keys the client's address. Requests that change the
server for all clients need an admin: the only key, a key that is marked as admin, or without keys
everybody except web pages of other sites.
"""

import hashlib
import hmac
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.errors import BAD_KEY, RequestRefused, refused_response
from gateway.http.origin.client_address import tenant_of
from gateway.http.origin.sites import is_foreign_page
from gateway.pool.routing.origin import namespace
from protocol.errors import ConfigError

logger = logging.getLogger(__name__)

PUBLIC_PATHS = frozenset({"/health", "/v1/health", "/livez", "/readyz"})

OPERATOR = "llamapool.operator"
"""Set in a scope by the listener of the admin socket; nothing that a client sends sets it."""
ADMIN_PREFIX = "/admin/"

_TENANT_CHARS = 12
_ADMIN_MARK = "admin"
_NEEDS_ADMIN = "This changes the server for all of its clients: it needs an admin key"
_NEEDS_SOCKET = (
    "This server has no keys, so the admin API answers on its host only, over the socket "
    "admin.sock in the runtime directory: `llamapool status` there finds it"
)
_NEEDS_OWN_PAGE = "A page of another site may not do this: name its origin with --cors-origins"


class Holder(NamedTuple):
    """Owner of a key."""

    tenant: str
    is_admin: bool


@dataclass(slots=True)
class KeyFile:
    """One key file with its keys as last read.

    Each line is a key; `admin` after it, separated by a space, marks an admin's key.
    """

    path: Path
    stamp: tuple[int, int] = (0, 0)
    digests: frozenset[bytes] = frozenset()
    admins: frozenset[bytes] = frozenset()

    def refresh(self) -> None:
        """Read the file again if it has changed; raises OSError or UnicodeDecodeError."""
        status = self.path.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp != self.stamp:
            lines = [line.strip() for line in self.path.read_text().splitlines()]
            keys = [_marked(line) for line in lines if line and not line.startswith("#")]
            self.digests = frozenset(digest(key) for key, _ in keys)
            self.admins = frozenset(digest(key) for key, is_admin in keys if is_admin)
            self.stamp = stamp


@dataclass(slots=True)
class KeyRing:
    """All valid keys; without any configured key everybody has access."""

    keys: frozenset[bytes] = frozenset()
    admins: frozenset[bytes] = frozenset()
    """Digests of the options' admin keys; the files mark further ones."""
    files: list[KeyFile] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether no key is configured; with an empty key file this is False: nobody has access."""
        return not self.keys and not self.files

    @property
    def n_keys(self) -> int:
        """Count the keys."""
        return len(self._digests())

    @property
    def has_admin(self) -> bool:
        """Whether any key is an admin's."""
        return self.is_open or self.n_keys == 1 or bool(self._admins())

    def holder(self, key: str) -> Holder | None:
        """Return the owner of a key, or None if the key is unknown."""
        self._refresh()
        wanted, known = digest(key), self._digests()
        # All digests are compared, in constant time: the duration reveals nothing about the keys.
        matches = [hmac.compare_digest(wanted, one) for one in known]
        if not any(matches):
            return None
        return Holder(wanted.hex()[:_TENANT_CHARS], len(known) == 1 or wanted in self._admins())

    def _digests(self) -> frozenset[bytes]:
        return self.keys.union(*(file.digests for file in self.files))

    def _admins(self) -> frozenset[bytes]:
        return self.admins.union(*(file.admins for file in self.files))

    def _refresh(self) -> None:
        for file in self.files:
            try:
                file.refresh()
            except (OSError, UnicodeDecodeError) as error:
                # Editors may delete a file before they write it anew: the last good keys stay.
                logger.warning(
                    "key file unreadable",
                    extra={
                        "file": file.path,
                        "cause": error,
                        "action": "the keys that were read last stay valid",
                    },
                )


def _marked(line: str) -> tuple[str, bool]:
    """Split a line of a key file into its key and whether it is marked as admin."""
    words = line.rsplit(maxsplit=1)
    is_admin = len(words) == 2 and words[1] == _ADMIN_MARK
    return (words[0], True) if is_admin else (line, False)


def digest(key: str) -> bytes:
    """Return the digest of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def key_ring(keys: Iterable[str], paths: Iterable[str], admins: Iterable[str] = ()) -> KeyRing:
    """Build the ring; raises `ConfigError` that names an unreadable file."""
    files = [KeyFile(Path(path)) for path in paths]
    for file in files:
        try:
            file.refresh()
        except OSError as error:
            raise ConfigError(f"cannot read key file {file.path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"key file {file.path} is not text: {error}") from error
    marked = _listed(admins)
    return KeyRing(_listed(keys) | marked, marked, files)


def _listed(items: Iterable[str]) -> frozenset[bytes]:
    return frozenset(digest(key) for item in items for key in item.split(",") if key)


class Rules(NamedTuple):
    """Configuration of keys and pages."""

    isolation: str = ""
    """`cache_isolation`."""
    origins: Sequence[str] = ()
    """Origins whose pages may do what this server's own pages may."""
    public: frozenset[str] = PUBLIC_PATHS
    is_page: Callable[[str], bool] = lambda _: False


_NO_RULES = Rules()


class AuthMiddleware:
    """Answers 401, or identifies the client for the layers below.

    Sets `scope["tenant"]`; `scope["namespace"]` of its cache; `scope["key"]`, the name of its key,
    empty without keys; `scope["is_admin"]`, whether it may change the server for all;
    `scope["is_operator"]`, whether it came over the admin socket, which no key opens.
    """

    def __init__(self, app: ASGIApp, ring: KeyRing, rules: Rules = _NO_RULES) -> None:
        self._app = app
        self._ring = ring
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["is_operator"] = bool(scope.get(OPERATOR))
        if not self._admit(scope):
            await refused_response(BAD_KEY, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> bool:
        """Identify the client in the scope; returns False if its key is missing or unknown."""
        ring, rules = self._ring, self._rules
        if scope["is_operator"] and scope["path"].startswith(ADMIN_PREFIX):
            scope.update(_anybody(scope), is_admin=True)
            return True
        if ring.is_open:
            is_own = not is_foreign_page(scope["headers"], rules.origins)
            scope.update(_anybody(scope), is_admin=is_own)
            return True
        key = presented_key(scope["headers"])
        holder = ring.holder(key) if key else None
        if holder is None:
            scope.update(_anybody(scope))
            return self._is_public(scope)
        scope["tenant"] = scope["key"] = holder.tenant
        scope["namespace"] = namespace(rules.isolation, holder.tenant, ring.n_keys)
        scope["is_admin"] = holder.is_admin
        return True

    def _is_public(self, scope: Scope) -> bool:
        if scope["path"] in self._rules.public:
            return "include_slots" not in Request(scope).query_params
        return scope["method"] in ("GET", "HEAD") and self._rules.is_page(scope["path"])


def _anybody(scope: Scope) -> dict[str, Any]:
    """Return the owner for a client without a key."""
    tenant = tenant_of(scope.get("address", ""))
    return {"tenant": tenant, "namespace": "", "key": "", "is_admin": False}


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
