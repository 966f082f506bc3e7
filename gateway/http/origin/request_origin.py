"""Reads the origin of a request from its headers, its body and its key.

The namespace of the cache is set by the server: with isolation it follows from the API key, and a
client's `cache_salt` can only split it further, so that no client can probe for the prompts of
another tenant.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from starlette.types import Scope

from gateway.api.fields.options import read_text
from gateway.http.origin.urgency import read_urgency
from gateway.keys.api_key import limits_of
from gateway.pool.requests.record import REQUEST
from gateway.pool.routing.origin import NO_HURRY, Origin, Urgency
from gateway.pool.tasks.trace import TRACE
from protocol.errors import InvalidRequest

_SESSION_HEADERS = (
    *(b"x-session-id", b"x-session-affinity", b"x-conversation-id"),
    b"x-litellm-session-id",
)
_SESSION_FIELDS = ("prompt_cache_key", "session_id")


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


def plain_origin(scope: Scope, urgency: Urgency = NO_HURRY) -> Origin:
    """Return the origin of a request whose prompts are not cached: whose it is, and how urgent."""
    return Origin(
        tenant=scope["tenant"],
        key=scope.get("key", ""),
        limits=limits_of(scope),
        urgency=urgency,
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
    fields = [read_text(body, key) for key in _SESSION_FIELDS]
    headers = dict(scope["headers"])
    named = (headers.get(name, b"").decode("latin-1") for name in _SESSION_HEADERS)
    return next(filter(None, (*named, *fields)), "")


def _read_label(body: Mapping[str, Any]) -> str:
    metadata = body.get("metadata")
    user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
    value = body.get("user") or user_id
    return value if isinstance(value, str) else ""
