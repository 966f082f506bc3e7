"""Reading a request body: bounded in size, time and depth, and always JSON.

The Content-Type is not looked at: `curl -d` sends a form's, browsers send text/plain, and
llama-server reads them all as JSON.
"""

import asyncio
import codecs
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import Message, Receive, Scope

from gateway.errors import Refused
from gateway.limits import check_limits, depth_of
from protocol.errors import InvalidRequest
from protocol.limits import LimitsConfig

MIB = 1024 * 1024

_DEFAULT = LimitsConfig()
_LINGER = 2
"""So many times the limit is read to the end, or the client would see a reset and not our 413."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """How large a body may be, and how long it may take: longer the more has come."""

    max_bytes: int
    patience_s: float = 30.0
    patience_per_mib_s: float = 1.0
    fields: LimitsConfig = LimitsConfig()


class ClientGone(Exception):
    """The client has closed the connection: nobody is left to answer."""


async def read_json(scope: Scope, receive: Receive, limits: BodyLimits) -> dict[str, Any]:
    """Return the JSON object of a request; raises `Refused`, `InvalidRequest` or `ClientGone`."""
    return parse_object(await _whole(scope, receive, limits), limits.fields)


async def read_list(scope: Scope, receive: Receive, limits: BodyLimits) -> list[Any]:
    """Return the JSON array of a request; raises like `read_json`."""
    return parse_list(await _whole(scope, receive, limits), limits.fields)


async def _whole(scope: Scope, receive: Receive, limits: BodyLimits) -> bytes:
    too_large = Refused(413, f"the request body is larger than {limits.max_bytes // MIB} MiB")
    if _declared(scope) > _LINGER * limits.max_bytes:
        raise too_large
    try:
        data = await _read(receive, limits)
    except TimeoutError as error:
        raise Refused(408, "the request body did not arrive in time") from error
    if data is None:
        raise too_large
    return data


def parse_object(data: bytes, limits: LimitsConfig = _DEFAULT) -> dict[str, Any]:
    """Decode a JSON object; raises `InvalidRequest` with the place of the mistake."""
    if not data.strip():
        raise InvalidRequest("the request body is empty; it must be a JSON object")
    value = _decoded(data)
    if not isinstance(value, dict):
        raise InvalidRequest("the request body must be a JSON object")
    _check_depth(data, value, limits)
    check_limits(value, limits)
    return value


def parse_list(data: bytes, limits: LimitsConfig = _DEFAULT) -> list[Any]:
    """Decode a JSON array; raises `InvalidRequest`, in llama-server's words if it is none."""
    value = _decoded(data) if data.strip() else None
    if not isinstance(value, list):
        raise InvalidRequest("Request body must be an array")
    _check_depth(data, {"": value}, limits)
    return value


def _decoded(data: bytes) -> Any:
    try:
        return orjson.loads(data.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}") from error


def _check_depth(data: bytes, value: dict[str, Any], limits: LimitsConfig) -> None:
    # Fewer brackets than the limit cannot nest deeper; nearly every body ends here.
    if data.count(b"{") + data.count(b"[") > limits.depth and depth_of(value) > limits.depth:
        raise InvalidRequest(f"the request body nests deeper than {limits.depth}")


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
