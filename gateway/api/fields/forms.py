"""Forms: their texts become the JSON values that a body of the same kind would have."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from gateway.api.fields.endpoints import BODIES
from gateway.api.fields.structures import Upload
from gateway.api.fields.tables import fields_of
from protocol.errors import InvalidRequest
from protocol.wire.shapes import Either, FieldShape, Several, TextShape


def from_form(
    kind: str, form: Mapping[str, Any], parse: Callable[[Mapping[str, str]], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the body of this kind: a field that may be no text is read as JSON, such as `0.5`.

    `parse` leaves what is no JSON the text that it is: its reader names the type that it expects.
    Raises `InvalidRequest` for a file where a field takes none.
    """
    table = fields_of(BODIES[kind])
    for name, value in form.items():
        if name in table and not isinstance(table[name], Upload) and _has_file(value):
            raise InvalidRequest(f"Field '{name}': must not be a file", param=name)
    texts = _texts(kind)
    others = {
        name: value for name, value in form.items() if name not in texts and isinstance(value, str)
    }
    return {**form, **parse(others)}


@cache
def _texts(kind: str) -> frozenset[str]:
    return frozenset(name for name, shape in fields_of(BODIES[kind]).items() if _is_text(shape))


def _has_file(value: Any) -> bool:
    return any(type(item) is bytes for item in (value if isinstance(value, list) else (value,)))


def _is_text(shape: FieldShape) -> bool:
    """Return whether a field takes texts, alone or beside other types."""
    if isinstance(shape, Either | Several):
        return any(_is_text(inner) for _, inner in shape.inner())
    return isinstance(shape, TextShape)
