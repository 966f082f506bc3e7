"""Origin of a request: the namespace of the cache that it may use, and its session.

The namespace is set by the server: with isolation it follows from the API key, and a client's
`cache_salt` can only split it further, so that nobody can probe for the prompts of another tenant.
A session is a hint that requests share a prompt. It changes no answer.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope

from gateway.keys.api_key import NO_LIMITS, KeyLimits, limits_of
from gateway.pool.routing.block_hashes import Prefix, fingerprint
from gateway.pool.routing.urgency import NO_HURRY, Urgency, read_urgency
from gateway.pool.trace import TRACE, TaskTrace
from gateway.requests.record import REQUEST, RequestRecord
from protocol.errors import InvalidRequest
from protocol.wire.messages import Generate
from protocol.wire.schema import json_type

_SESSION_HEADERS = (
    *(b"x-session-id", b"x-session-affinity", b"x-conversation-id"),
    b"x-litellm-session-id",
)
_SESSION_FIELDS = ("prompt_cache_key", "session_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Tenant, cache namespace and session of a request."""

    tenant: str = ""
    key: str = ""
    """Name of the API key; empty without keys."""
    limits: KeyLimits = NO_LIMITS
    urgency: Urgency = NO_HURRY
    salt: str = ""
    """Namespace of the cache."""
    session: str = ""
    """The client's name for a conversation, from a header or a field."""
    trace: TaskTrace | None = None
    label: str = ""
    """The client's user, a weaker hint of the same kind."""
    record: RequestRecord | None = field(default=None, compare=False)
    """The request, which pays for the tasks."""
    _prefixes: dict[tuple[int, int], Prefix] = field(default_factory=dict, compare=False)

    def prefix(self, task: Generate, model: str) -> Prefix:
        """Hash the blocks of a prompt, once for all choices of the request."""
        key = (id(task.chat), id(task.prompt) if task.infill is None else id(task.infill))
        found = self._prefixes.get(key)
        if found is None:
            found = self._prefixes[key] = fingerprint(task, model)
        return found

    def session_key(self, model: str) -> int:
        """Return the hash of the session within the pool; 0 for none."""
        return hash((model, self.salt, "session", self.session)) if self.session else 0

    def label_key(self, model: str) -> int:
        """Return the hash of the user within the pool; 0 for none."""
        return hash((model, self.salt, "label", self.label)) if self.label else 0


def read_origin(scope: Scope, body: Mapping[str, Any]) -> Origin:
    """Read the origin from headers and body; raises `InvalidRequest` naming the field."""
    return Origin(
        tenant=scope["tenant"],
        key=scope.get("key", ""),
        limits=limits_of(scope),
        urgency=read_urgency(scope, body),
        salt=_salt(scope.get("namespace", ""), _read_salt(body)),
        session=_read_session(scope, body),
        label=_read_label(body),
        trace=scope.get(TRACE),
        record=scope.get(REQUEST),
    )


def plain_origin(scope: Scope) -> Origin:
    """Return whose request it is, where prompts are not reused."""
    return Origin(
        tenant=scope["tenant"],
        key=scope.get("key", ""),
        limits=limits_of(scope),
        record=scope.get(REQUEST),
    )


def namespace(isolation: str, tenant: str, n_keys: int) -> str:
    """Return the tenant's namespace of the cache; empty is common to all.

    With `isolation` neither `key` nor `none`, tenants are apart as soon as there are two API keys.
    """
    is_apart = isolation == "key" or (isolation != "none" and n_keys > 1)
    return tenant if is_apart and n_keys else ""


def _salt(own: str, clients: str) -> str:
    """Hash both parts, so that no client can name the namespace of another tenant."""
    if not own and not clients:
        return ""
    return hashlib.sha256(f"{own}\0{clients}".encode("utf-8", "replace")).hexdigest()[:16]


def _read_salt(body: Mapping[str, Any]) -> str:
    value = body.get("cache_salt")
    if value is None:
        return ""
    if not isinstance(value, str) or not value:
        message = "Field 'cache_salt': must be a string that is not empty"
        raise InvalidRequest(message, param="cache_salt")
    return value


def _read_session(scope: Scope, body: Mapping[str, Any]) -> str:
    for key in _SESSION_FIELDS:
        if not isinstance(body.get(key), str | None):
            kind = json_type(body[key])
            message = f"Field '{key}': type must be string, but is {kind}"
            raise InvalidRequest(message, param=key)
    headers = dict(scope["headers"])
    named = (headers.get(name, b"").decode("latin-1") for name in _SESSION_HEADERS)
    told = (body.get(key) or "" for key in _SESSION_FIELDS)
    return next(filter(None, (*named, *told)), "")


def _read_label(body: Mapping[str, Any]) -> str:
    metadata = body.get("metadata")
    user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
    value = body.get("user") or user_id
    return value if isinstance(value, str) else ""
