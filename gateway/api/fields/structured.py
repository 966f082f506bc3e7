"""Fields that constrain the text: `json_schema`, `grammar` and OpenAI's `response_format`.

These readers choose the schema that counts; the worker turns it into a grammar and finds its
mistakes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from protocol.errors import InvalidRequest
from protocol.wire.schema import wrong_type

RESPONSE_FORMAT = "response_format"
"""What a worker calls the schema of a chat."""


class AnswerSchema(NamedTuple):
    """The schema that a chat's answer must match."""

    text: str | None = None
    """As JSON."""
    field: str = RESPONSE_FORMAT
    """The field that it came in, for errors."""


def read_json_schema(body: Mapping[str, Any]) -> str | None:
    """Read `json_schema`; null is none, `{}` is any object. It excludes `grammar`.

    `{}` beside an empty `grammar` is none, as in llama-server: SillyTavern sends both always.
    """
    schema = body.get("json_schema")
    if schema is None or (schema == {} and "grammar" in body and not body["grammar"]):
        return None
    if body.get("grammar"):
        message = 'Either "json_schema" or "grammar" can be specified, but not both'
        raise InvalidRequest(message, param="json_schema")
    return _text(schema, "json_schema")


def read_response_format(
    body: Mapping[str, Any],
    form: Mapping[str, Any],
    path: str = RESPONSE_FORMAT,
    *,
    is_flat: bool = False,
) -> AnswerSchema:
    """Read the schema that a chat's answer must match, from the format at `path` or `json_schema`.

    A flat format has `schema` beside its `type`; OpenAI's chat has an object in between.
    """
    kind = form.get("type")
    if kind is None or kind in ("", "text"):
        return AnswerSchema(read_json_schema(body), "json_schema")
    if kind not in ("json_object", "json_schema"):
        message = f'{path} type must be one of "text" or "json_object", but got: {kind}'
        raise InvalidRequest(message, param=f"{path}.type")
    if body.get("grammar"):
        raise InvalidRequest(f"Cannot use both {path} and grammar", param=path)
    if kind == "json_object" and form.get("schema") is None and body.get("json_schema"):
        return AnswerSchema(read_json_schema(body), "json_schema")
    inner = path
    if kind == "json_schema" and not is_flat:
        form, inner = _read_inner(form, path), f"{path}.json_schema"
    schema = form.get("schema")
    return AnswerSchema(_text({} if schema is None else schema, f"{inner}.schema"), path)


def _read_inner(form: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    inner = form.get("json_schema")
    if inner is not None and not isinstance(inner, dict):
        raise wrong_type(f"{path}.json_schema", "object", inner)
    return inner or {}


def _text(schema: Any, field: str) -> str:
    if not isinstance(schema, dict):
        problem = "JSON schema conversion failed:\nJSON schema error at #: schema must be an object"
        message = f"Field '{field}': {problem}"
        raise InvalidRequest(message, param=field)
    return orjson.dumps(schema).decode()
