"""Reading a request body: bounded in size, time and depth, and always JSON.

The Content-Type is not looked at: `curl -d` sends a form's, browsers send text/plain, and
llama-server reads them all as JSON.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import Message, Receive, Scope

from gateway.errors import Refused
from protocol.errors import InvalidRequest

MIB = 1024 * 1024
MAX_DEPTH = 128
PATIENCE_S = 30.0

_LINGER = 2
"""So many times the limit is read to the end, or the client would see a reset and not our 413."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """How large a body may be, and how long it may take: longer the more has come."""

    max_bytes: int
    patience_s: float = PATIENCE_S
    patience_per_mib_s: float = 1.0


class ClientGone(Exception):
    """The client has closed the connection: nobody is left to answer."""


async def read_json(scope: Scope, receive: Receive, limits: BodyLimits) -> dict[str, Any]:
    """Return the JSON object of a request; raises `Refused`, `InvalidRequest` or `ClientGone`."""
    too_large = Refused(413, f"the request body is larger than {limits.max_bytes // MIB} MiB")
    if _declared(scope) > _LINGER * limits.max_bytes:
        raise too_large
    try:
        data = await _read(receive, limits)
    except TimeoutError as error:
        raise Refused(408, "the request body did not arrive in time") from error
    if data is None:
        raise too_large
    return parse_object(data)


def parse_object(data: bytes) -> dict[str, Any]:
    """Decode a JSON object; raises `InvalidRequest` with the place of the mistake."""
    if not data.strip():
        raise InvalidRequest("the request body is empty; it must be a JSON object")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the request body must be a JSON object")
    _check_depth(value, data)
    return value


def _declared(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


async def _read(receive: Receive, limits: BodyLimits) -> bytes | None:
    """Return the body, or None if it was too large; what is too much is read and dropped."""
    chunks: list[bytes] = []
    size = 0
    began_at = asyncio.get_running_loop().time()
    async with asyncio.timeout(limits.patience_s) as deadline:
        while size <= _LINGER * limits.max_bytes:
            message: Message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limits.max_bytes:
                chunks.clear()
            if not message.get("more_body", False):
                return b"".join(chunks) if size <= limits.max_bytes else None
            earned_s = limits.patience_s + limits.patience_per_mib_s * size / MIB
            deadline.reschedule(began_at + earned_s)
    return None


def _check_depth(value: dict[str, Any], data: bytes) -> None:
    # Fewer brackets than the limit cannot nest deeper; nearly every body ends here.
    if data.count(b"{") + data.count(b"[") <= MAX_DEPTH:
        return
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        items = [item for one in level for item in (one.values() if type(one) is dict else one)]
        level = [item for item in items if type(item) in (dict, list)]
        if not level:
            return
    raise InvalidRequest(f"the request body nests deeper than {MAX_DEPTH}")
