"""Forms: their texts become the JSON values that a body of the same kind would have."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import orjson

from gateway.api.fields.endpoints import BODIES
from gateway.api.fields.tables import fields_of
from protocol.wire.shapes import TextShape


def from_form(kind: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of this kind: a field that is no text is read as JSON, such as `0.5`.

    What is no JSON stays the text that it is: its reader names the type that it expects.
    """
    texts = _texts(kind)
    return {
        name: value if name in texts or not isinstance(value, str) else _json(value)
        for name, value in form.items()
    }


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


@cache
def _texts(kind: str) -> frozenset[str]:
    return frozenset(
        name for name, shape in fields_of(BODIES[kind]).items() if isinstance(shape, TextShape)
    )
