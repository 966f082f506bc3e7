"""Reads how soon a client needs its answer, and the order of its own requests."""

import math
from collections.abc import Mapping
from typing import Any

from starlette.types import Scope

from gateway.pool.routing.origin import Urgency
from protocol.errors import InvalidRequest
from protocol.wire.schema import json_type
from protocol.wire.shapes import INT32_MAX

TIMEOUT_HEADER = "x-request-timeout"
TTFT_HEADER = "x-slo-ttft-ms"
PRIORITY_HEADER = "x-priority"
_MAX_S = 86_400.0
"""Longest time that a request may name: a day, in seconds."""


def read_urgency(scope: Scope, body: Mapping[str, Any]) -> Urgency:
    """Read headers and the field `priority`; raises `InvalidRequest` that names the wrong one."""
    headers = {name: value for name, value in scope["headers"] if name.startswith(b"x-")}
    timeout_s = _seconds(headers, TIMEOUT_HEADER, 1.0)
    ttft_s = _seconds(headers, TTFT_HEADER, 1e-3)
    priority = body.get("priority")
    if priority is not None:
        return Urgency(priority=_whole("priority", priority), timeout_s=timeout_s, ttft_s=ttft_s)
    text = headers.get(PRIORITY_HEADER.encode(), b"0").decode("latin-1").strip()
    try:
        found: Any = int(text)
    except ValueError:
        found = text
    return Urgency(priority=_whole(PRIORITY_HEADER, found), timeout_s=timeout_s, ttft_s=ttft_s)


def _seconds(headers: Mapping[bytes, bytes], name: str, unit_s: float) -> float:
    text = headers.get(name.encode())
    if text is None:
        return math.inf
    try:
        seconds = float(text) * unit_s
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _MAX_S:
        limit = f"{_MAX_S / unit_s:g} {'seconds' if unit_s == 1 else 'milliseconds'}"
        given = text[:32].decode("latin-1")
        message = f"Field '{name}': must be a number above 0, at most {limit}, but got '{given}'"
        raise InvalidRequest(message, param=name)
    return seconds


def _whole(name: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = math.trunc(value)
    if not isinstance(value, int) or isinstance(value, bool):
        message = f"Field '{name}': must be an integer, but is {json_type(value)}"
        raise InvalidRequest(message, param=name)
    if not -INT32_MAX - 1 <= value <= INT32_MAX:
        message = f"Field '{name}': must be between {-INT32_MAX - 1} and {INT32_MAX}"
        raise InvalidRequest(message, param=name)
    return value
