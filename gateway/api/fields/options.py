"""Readers of single values: a flag, an object, an integer, and small fields of all dialects."""

import math
from collections.abc import Mapping
from typing import Any

from protocol.errors import InvalidRequest
from protocol.wire.sampling import INT32_MAX, MAX_PROBS
from protocol.wire.schema import wrong_type


def read_flag(body: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """Read a boolean; null is absent."""
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong_type(key, "boolean", value)
    return value


def read_text(body: Mapping[str, Any], key: str) -> str:
    """Read a text; null and absent are empty."""
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise wrong_type(key, "string", value)
    return value or ""


def require_string(item: Mapping[str, Any], key: str, path: str) -> str:
    """Return the string `key` of the object at `path`; raises `InvalidRequest`."""
    value = item.get(key)
    if not isinstance(value, str):
        raise InvalidRequest(f"Field '{path}.{key}': must be a string", param=f"{path}.{key}")
    return value


def optional_string(value: Any, path: str) -> str | None:
    """Return the string at `path`, None if it is null or absent; raises `InvalidRequest`."""
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"Field '{path}': must be a string", param=path)
    return value


def require_parts(content: Any, path: str) -> list[Any]:
    """Return the parts of a content that is no string; raises `InvalidRequest`."""
    if not isinstance(content, list):
        raise InvalidRequest(f"Field '{path}': must be a string or an array", param=path)
    return content


def read_object(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Read an object; null and absent are empty."""
    value = body.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type(key, "object", value)
    return value


def read_int(body: Mapping[str, Any], key: str, low: int, high: int) -> int | None:
    """Read an integer within limits; a fraction is cut off; null is absent."""
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong_type(key, "number", value)
    value = math.trunc(value)
    if not low <= value <= high:
        limits = f"Value must be between {low} <= value <= {high}, but got {value}"
        raise InvalidRequest(f"Field '{key}': {limits}", param=key)
    return value


def read_single_choice(body: Mapping[str, Any]) -> int:
    """Return 1, for an answer that has no choices; raises `InvalidRequest` if several are asked."""
    for key in ("n", "n_cmpl"):
        read_int(body, key, 1, 1)
    return 1


def read_ping_interval(body: Mapping[str, Any]) -> float | None:
    """Read `sse_ping_interval` in seconds: 0 is never (-1 in the body), None the server's own."""
    value = read_int(body, "sse_ping_interval", -1, INT32_MAX)
    return None if value is None else float(max(value, 0))


def read_n_top(body: Mapping[str, Any], key: str) -> int | None:
    """Read how many alternatives of each token to show, clamped to what is possible."""
    value = read_int(body, key, -(2**63), 2**64)
    return None if value is None else min(max(value, 0), MAX_PROBS)
