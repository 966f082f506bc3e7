"""Parses a body to its JSON value, bounded in depth and in the number of values.

orjson refuses lone surrogates, NaN and numbers beyond a double. Integers beyond 64 bits become
floats; of equal names the last one counts.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from protocol.config.limits import LimitsConfig
from protocol.errors import InvalidRequest
from protocol.wire.shapes import measure

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some Windows programs write it before every text."""
_NAME_COST = 10
"""Cost of reading a name of an object, relative to a value."""
_SLICE = 256 * 1024
"""Bytes that are counted at once; other threads run in between."""


def parse_object(data: bytes, limits: LimitsConfig) -> dict[str, Any]:
    """Decode a JSON object; raises `InvalidRequest` with the position of the error."""
    if not data.strip():
        raise InvalidRequest("the request body is empty; it must be a JSON object")
    value = parse_value(data, limits)
    if not isinstance(value, dict):
        raise InvalidRequest("the request body must be a JSON object")
    return value


def parse_list(data: bytes, limits: LimitsConfig) -> list[Any]:
    """Decode a JSON array; raises `InvalidRequest` with llama-server's text if it is none."""
    value = parse_value(data, limits) if data.strip() else None
    if not isinstance(value, list):
        raise InvalidRequest("Request body must be an array")
    return value


def parse_value(data: bytes, limits: LimitsConfig) -> Any:
    """Decode any JSON; raises `InvalidRequest` with the position of the error."""
    if _NAME_COST * len(data) > limits.values:  # each value takes at least a byte
        _check_values(data, limits.values)
    try:
        value = orjson.loads(data.removeprefix(_BYTE_ORDER_MARK))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}") from error
    _check_depth(value, data, limits)
    return value


def parse_texts(texts: Mapping[str, str], limits: LimitsConfig) -> dict[str, Any]:
    """Decode JSON by name; what is none stays the text that it is.

    All of them together are bounded as one body. Raises `InvalidRequest`, which names the text.
    """
    values: dict[str, Any] = {}
    n_left = limits.values
    for name, text in texts.items():
        data = text.encode()
        try:
            if _NAME_COST * len(data) > n_left:
                _check_values(data, n_left)
            n_left = max(n_left - count_marks(data), 0)
            values[name] = orjson.loads(data)
            _check_depth(values[name], data, limits)
        except orjson.JSONDecodeError:
            values[name] = text
        except InvalidRequest as error:
            raise InvalidRequest(f"Field '{name}': {error.message}", param=name) from error
    return values


def _check_depth(value: Any, data: bytes, limits: LimitsConfig) -> None:
    # With fewer brackets than the limit it cannot nest too deep: true for nearly every body.
    if data.count(b"{") + data.count(b"[") > limits.depth and measure(value, 0)[0] > limits.depth:
        raise InvalidRequest(f"the request body nests deeper than {limits.depth} levels")


def _check_values(data: bytes, most: int) -> None:
    """Limit the values of a body before orjson parses it: orjson holds the GIL until it is done."""
    parts = [data[start : start + _SLICE] for start in range(0, len(data), _SLICE)]
    if sum(map(count_marks, parts)) <= most:
        return
    # Count again without the contents of strings.
    n, begins_escaped, begins_inside = 0, False, False
    for part in parts:
        single = part[begins_escaped:].replace(b"\\\\", b"")
        begins_escaped = single.endswith(b"\\")
        pieces = single.replace(b'\\"', b"").split(b'"')
        n += count_marks(b"".join(pieces[begins_inside::2]))
        begins_inside ^= len(pieces) % 2 == 0
        if n > most:
            message = (
                f"the request body has more than {most} values, a name counted as {_NAME_COST}"
            )
            raise InvalidRequest(message)


def count_marks(part: bytes) -> int:
    """Count what may begin a value or follow a name, also in strings: 64 KiB take 0.03 ms."""
    return part.count(b",") + part.count(b"{") + part.count(b"[") + _NAME_COST * part.count(b":")
