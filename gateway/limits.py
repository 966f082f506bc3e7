"""Holds a decoded body against the bounds of `[gateway.limits]`. Pure.

Only sizes are looked at; what a field means, and whether it has the right type, is its reader's
business.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from protocol.errors import InvalidRequest
from protocol.limits import LimitsConfig

Body = Mapping[str, Any]

_KIB = 1024
_BASE64_MIB = 1024 * 1024 * 4 // 3


def check_limits(body: Body, limits: LimitsConfig) -> None:
    """Raise `InvalidRequest` for the first field that is too large."""
    for check in _CHECKS:
        check(body, limits)


def depth_of(value: Any) -> int:
    """Return how deep arrays and objects nest; a scalar is 0."""
    level, depth = [value], 0
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [item for one in level for item in _items(one)]
    return depth


def _items(value: Any) -> Iterator[Any]:
    yield from value.values() if isinstance(value, dict) else value


def _check_counts(body: Body, limits: LimitsConfig) -> None:
    for key, bound in (
        ("messages", limits.messages),
        ("input", limits.messages),
        ("stop", limits.stops),
        ("stop_sequences", limits.stops),
        ("logit_bias", limits.biases),
        ("tools", limits.tools),
        ("functions", limits.tools),
        ("image_data", limits.images),
    ):
        value = body.get(key)
        is_dialog = key != "input" or _holds_objects(value)
        if isinstance(value, list | dict) and is_dialog and len(value) > bound:
            raise _too_many(key, bound, len(value))


def _holds_objects(value: Any) -> bool:
    """Tell a dialog of /v1/responses from the texts and tokens of /v1/embeddings."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _check_stops(body: Body, limits: LimitsConfig) -> None:
    for key in ("stop", "stop_sequences"):
        value = body.get(key)
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and len(text) > limits.stop_chars:
                message = f"Field '{key}': a string is longer than {limits.stop_chars} characters"
                raise InvalidRequest(message, param=key)


def _check_grammar(body: Body, limits: LimitsConfig) -> None:
    value = body.get("grammar")
    if isinstance(value, str) and len(value) > limits.grammar_kib * _KIB:
        message = f"Field 'grammar': larger than {limits.grammar_kib} KiB"
        raise InvalidRequest(message, param="grammar")


def _check_schemas(body: Body, limits: LimitsConfig) -> None:
    found = [("json_schema", body.get("json_schema")), ("response_format", _schema_of(body))]
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            function = tool.get("function")
            held = function.get("parameters") if isinstance(function, dict) else None
            found.append(("tools", held or tool.get("parameters") or tool.get("input_schema")))
    functions = body.get("functions")
    listed = functions if isinstance(functions, list) else ()
    found += [("functions", one.get("parameters")) for one in listed if isinstance(one, dict)]
    for key, schema in found:
        if depth_of(schema) > limits.schema_depth:
            message = f"Field '{key}': the schema nests deeper than {limits.schema_depth}"
            raise InvalidRequest(message, param=key)


def _schema_of(body: Body) -> Any:
    form = body.get("response_format")
    if not isinstance(form, dict):
        return None
    named = form.get("json_schema")
    return named.get("schema") if isinstance(named, dict) else form.get("schema")


def _check_images(body: Body, limits: LimitsConfig) -> None:
    images = [*_image_data(body), *_parts(body)]
    if len(images) > limits.images:
        raise _too_many("messages", limits.images, len(images), "images or sounds")
    for key, data in images:
        if len(data) > limits.image_mib * _BASE64_MIB:
            message = f"Field '{key}': an image or a sound is larger than {limits.image_mib} MiB"
            raise InvalidRequest(message, param=key)


def _image_data(body: Body) -> Iterator[tuple[str, str]]:
    items = body.get("image_data")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and isinstance(item.get("data"), str):
            yield "image_data", item["data"]


def _parts(body: Body) -> Iterator[tuple[str, str]]:
    """Find the images and sounds in the messages of a dialog, however they are written."""
    for key in ("messages", "input"):
        messages = body.get(key)
        for message in messages if isinstance(messages, list) else ():
            content = message.get("content") if isinstance(message, dict) else None
            for part in content if isinstance(content, list) else ():
                if isinstance(part, dict) and (data := _data_of(part)):
                    yield key, data


def _data_of(part: Body) -> str:
    for key, inner in _WRITTEN:
        value = part.get(key)
        if isinstance(value, dict):
            value = value.get(inner)
        if isinstance(value, str):
            return value
    return ""


_WRITTEN = (
    ("image_url", "url"),
    ("input_audio", "data"),
    ("input_audio", "url"),
    ("source", "data"),
    ("source", "url"),
)


def _too_many(key: str, bound: int, n: int, what: str = "entries") -> InvalidRequest:
    return InvalidRequest(f"Field '{key}': at most {bound} {what}, but got {n}", param=key)


_CHECKS: Sequence[Callable[[Body, LimitsConfig], None]] = (
    _check_counts,
    _check_stops,
    _check_grammar,
    _check_schemas,
    _check_images,
)
