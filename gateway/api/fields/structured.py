"""What the text must look like: `json_schema`, `grammar` and OpenAI's `response_format`.

The worker turns the schema into a grammar and finds its mistakes; here is only settled which of the
fields counts.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.api.fields.options import read_object, wrong_type
from protocol.errors import InvalidRequest


def read_json_schema(body: Mapping[str, Any]) -> str | None:
    """Read `json_schema`; null is none, `{}` is any object. It excludes `grammar`."""
    schema = body.get("json_schema")
    if schema is None:
        return None
    if body.get("grammar"):
        message = 'Either "json_schema" or "grammar" can be specified, but not both'
        raise InvalidRequest(message, param="json_schema")
    return _text(schema, "json_schema")


def read_response_format(body: Mapping[str, Any]) -> str | None:
    """Read the schema that a chat's answer must match, from `response_format` or `json_schema`."""
    form = read_object(body, "response_format")
    kind = form.get("type")
    if kind is None or kind in ("", "text"):
        return read_json_schema(body)
    if kind not in ("json_object", "json_schema"):
        message = f'response_format type must be one of "text" or "json_object", but got: {kind}'
        raise InvalidRequest(message, param="response_format.type")
    if body.get("grammar"):
        message = "Cannot use both response_format and grammar"
        raise InvalidRequest(message, param="response_format")
    if kind == "json_object":
        if form.get("schema") is None and body.get("json_schema"):
            return read_json_schema(body)
        return _text(_or_any(form.get("schema")), "response_format.schema")
    wrapper = form.get("json_schema")
    if wrapper is not None and not isinstance(wrapper, dict):
        raise wrong_type("response_format.json_schema", "object", wrapper)
    return _text(_or_any((wrapper or {}).get("schema")), "response_format.json_schema.schema")


def _or_any(schema: Any) -> Any:
    return {} if schema is None else schema


def _text(schema: Any, field: str) -> str:
    if not isinstance(schema, dict):
        problem = "JSON schema conversion failed:\nJSON schema error at #: schema must be an object"
        message = f"Field '{field}': {problem}"
        raise InvalidRequest(message, param=field)
    return orjson.dumps(schema).decode()
