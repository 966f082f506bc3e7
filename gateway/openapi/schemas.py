"""The JSON schema of a field's shape; a bound that depends on the model is a description."""

import math
from functools import singledispatch
from typing import Any

from gateway.api.fields.structures import Upload
from protocol.wire.shapes import (
    Bound,
    Clamp,
    Either,
    Entries,
    Fields,
    FieldShape,
    Flag,
    Free,
    Items,
    Kinds,
    Number,
    Several,
    TextShape,
    Token,
)

Schema = dict[str, Any]


@singledispatch
def schema_of(shape: FieldShape) -> Schema:
    """Return the JSON schema of what passes; numbers that are clamped have no bounds in it."""
    raise TypeError(shape)


@schema_of.register
def _(shape: Flag) -> Schema:
    return {"type": "boolean"}


@schema_of.register
def _(shape: Number) -> Schema:
    schema: Schema = {"type": "integer" if shape.whole else "number"}
    if not shape.clamps.is_both:
        schema |= _bound("minimum", shape.low)
    if shape.clamps is Clamp.NO:
        return schema | _bound("maximum", shape.high)
    return schema | {"description": shape.describe()}


@schema_of.register
def _(shape: Token) -> Schema:
    return {"type": "integer", "minimum": 0}


@schema_of.register
def _(shape: TextShape) -> Schema:
    return {"type": "string", **_bound("maxLength", shape.max_length)}


@schema_of.register
def _(shape: Upload) -> Schema:
    return {"type": "string", "contentMediaType": "application/octet-stream"}


@schema_of.register
def _(shape: Items) -> Schema:
    return {"type": "array", "items": schema_of(shape.item), **_bound("maxItems", shape.max_length)}


@schema_of.register
def _(shape: Free) -> Schema:
    return {"type": ["object", "array", "string", "number", "boolean", "null"]}


@schema_of.register
def _(shape: Fields) -> Schema:
    properties = {name: schema_of(inner) for name, inner in shape.known.items()}
    return {"type": "object", "properties": properties}


@schema_of.register
def _(shape: Entries) -> Schema:
    inner = schema_of(shape.value)
    return {
        "type": "object",
        "additionalProperties": inner,
        **_bound("maxProperties", shape.max_length),
    }


@schema_of.register
def _(shape: Either) -> Schema:
    return {"anyOf": [schema_of(inner) for inner in shape.shapes]}


@schema_of.register
def _(shape: Kinds) -> Schema:
    return {"anyOf": [schema_of(inner) for inner in (*shape.known.values(), shape.others)]}


@schema_of.register
def _(shape: Several) -> Schema:
    single = schema_of(shape.one)
    return {
        "anyOf": [
            single,
            {"type": "array", "items": single, **_bound("maxItems", shape.max_length)},
        ]
    }


def _bound(word: str, bound: Bound) -> Schema:
    if isinstance(bound, str):
        return {"description": f"{word}: {bound}"}
    return {word: int(bound) if bound == int(bound) else bound} if math.isfinite(bound) else {}
