"""Who may use the API: keys, kept as digests, re-read when their files change.

Deny by default: with a key configured, every path but the few public ones needs one. The tenant, by
which the queue is fair, is a short digest of the key, or without keys the client's address.
"""

import hashlib
import hmac
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import BAD_KEY, refused_response
from gateway.origin import namespace
from protocol.errors import ConfigError

log = logging.getLogger(__name__)

PUBLIC_PATHS = frozenset({"/health", "/v1/health", "/livez", "/readyz"})

_TENANT_CHARS = 12


@dataclass(slots=True)
class KeyFile:
    """One file of keys and the state in which it was last read."""

    path: Path
    stamp: tuple[int, int] = (0, 0)
    digests: frozenset[bytes] = frozenset()

    def refresh(self) -> None:
        """Read the file again if it has changed; raises OSError or UnicodeDecodeError."""
        status = self.path.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp != self.stamp:
            lines = [line.strip() for line in self.path.read_text().splitlines()]
            keys = [line for line in lines if line and not line.startswith("#")]
            self.digests = frozenset(map(digest, keys))
            self.stamp = stamp


@dataclass(slots=True)
class KeyRing:
    """Every key that is let in; none at all lets everybody in."""

    keys: frozenset[bytes] = frozenset()
    files: list[KeyFile] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether no key was configured; an empty key file lets nobody in."""
        return not self.keys and not self.files

    @property
    def n_keys(self) -> int:
        """Count the keys."""
        return len(self.keys) + sum(len(file.digests) for file in self.files)

    def tenant(self, key: str) -> str | None:
        """Return the tenant of a key, or None for an unknown one."""
        wanted = digest(key)
        # Every digest is compared, in constant time: neither tells how near a guess was.
        matches = [hmac.compare_digest(wanted, known) for known in self._digests()]
        return wanted.hex()[:_TENANT_CHARS] if any(matches) else None

    def _digests(self) -> Iterable[bytes]:
        yield from self.keys
        for file in self.files:
            try:
                file.refresh()
            except (OSError, UnicodeDecodeError) as error:
                # An editor replaces a file by way of no file: the last good keys stay.
                log.warning("key file unreadable path=%s error=%s", file.path, error)
            yield from file.digests


def digest(key: str) -> bytes:
    """Return what is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def key_ring(keys: Iterable[str], paths: Iterable[str]) -> KeyRing:
    """Build the ring; raises `ConfigError` that names an unreadable file."""
    files = [KeyFile(Path(path)) for path in paths]
    for file in files:
        try:
            file.refresh()
        except OSError as error:
            raise ConfigError(f"cannot read key file {file.path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"key file {file.path} is not text: {error}") from error
    named = [key for item in keys for key in item.split(",") if key]
    return KeyRing(frozenset(map(digest, named)), files)


class AuthMiddleware:
    """Sets `scope["tenant"]`, and `scope["namespace"]` of its cache, or answers 401."""

    def __init__(
        self,
        app: ASGIApp,
        ring: KeyRing,
        is_page: Callable[[str], bool] = lambda _: False,
        isolation: str = "",
    ) -> None:
        self._app = app
        self._ring = ring
        self._is_page = is_page
        self._isolation = isolation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        tenant = self._tenant(scope)
        if tenant is None:
            await refused_response(BAD_KEY, scope["path"])(scope, receive, send)
            return
        scope["tenant"] = tenant
        scope["namespace"] = namespace(self._isolation, tenant, self._ring.n_keys)
        await self._app(scope, receive, send)

    def _tenant(self, scope: Scope) -> str | None:
        if self._ring.is_open or self._is_public(scope):
            client = scope.get("client")
            return str(client[0]) if client else ""
        key = presented_key(scope["headers"])
        return self._ring.tenant(key) if key else None

    def _is_public(self, scope: Scope) -> bool:
        if scope["path"] in PUBLIC_PATHS:
            return True
        return scope["method"] in ("GET", "HEAD") and self._is_page(scope["path"])


def presented_key(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the key of `Authorization` (with or without Bearer), or else of `X-Api-Key`."""
    found = {name: value for name, value in headers if name in _KEY_HEADERS}
    authorization = found.get(b"authorization", b"").strip()
    if authorization[:7].lower() == b"bearer ":
        authorization = authorization[7:].strip()
    key = authorization or found.get(b"x-api-key", b"").strip()
    return key.decode("utf-8", "surrogateescape")


_KEY_HEADERS = (b"authorization", b"x-api-key")
