"""vLLM's constraints of an answer, said in llama-server's words: `json_schema` and `grammar`.

What has no such words stays in the body, and `gateway.api.unsupported` refuses it: a regular
expression, because the grammars here lack `\\d`, `\\w` and look-around, and structural tags.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from gateway.api.fields.options import read_object
from protocol.errors import InvalidRequest
from protocol.wire.schema import wrong_type

FIELDS = ("structured_outputs", "guided_json", "guided_choice", "guided_grammar")
"""The fields that are read."""

_ESCAPES = str.maketrans({'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
"""In a literal of GBNF."""


class _Constraint(NamedTuple):
    path: str
    target: str
    """llama-server's field."""
    value: Any


def with_constraint(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body with vLLM's constraint, if it has one, in llama-server's field."""
    if not any(body.get(field) is not None for field in FIELDS) or _is_beyond(body):
        return body
    rest = {key: value for key, value in body.items() if key not in FIELDS}
    found = list(_constraints(body))
    if not found:
        return rest
    first, *others = found
    if others or body.get(first.target):
        other = others[0].path if others else first.target
        message = f"Field '{first.path}': must be the only constraint, but there is {other}"
        raise InvalidRequest(message, param=first.path)
    if not rest.get("grammar"):
        # An empty one beside the schema `{}` would mean that there is no schema.
        rest.pop("grammar", None)
    return {**rest, first.target: first.value}


def _is_beyond(body: Mapping[str, Any]) -> bool:
    nested = read_object(body, "structured_outputs")
    return any(nested.get(kind) is not None for kind in ("regex", "structural_tag"))


def _constraints(body: Mapping[str, Any]) -> Iterator[_Constraint]:
    nested = read_object(body, "structured_outputs")
    for key, (target, read) in _READERS.items():
        if nested.get(key) is not None and nested[key] is not False:
            path = f"structured_outputs.{key}"
            yield _Constraint(path, target, read(nested[key], path))
    for field in FIELDS[1:]:
        if body.get(field) is not None:
            target, read = _READERS[field.removeprefix("guided_")]
            yield _Constraint(field, target, read(body[field], field))


def _schema(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(path, "object", value)
    return value


def _any_object(value: Any, path: str) -> Mapping[str, Any]:
    if value is not True:
        raise wrong_type(path, "boolean", value)
    return {}


def _grammar(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(path, "string", value)
    return value


def _choice(value: Any, path: str) -> str:
    """Return the grammar of one of several texts."""
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        message = f"Field '{path}': must be an array of strings, and not empty"
        raise InvalidRequest(message, param=path)
    return "root ::= " + " | ".join(f'"{text.translate(_ESCAPES)}"' for text in value)


_READERS: Mapping[str, tuple[str, Callable[[Any, str], Any]]] = {
    "json": ("json_schema", _schema),
    "json_object": ("json_schema", _any_object),
    "choice": ("grammar", _choice),
    "grammar": ("grammar", _grammar),
}
"""Kind of a constraint -> llama-server's field, and what reads it."""
