"""Forms: their texts become the JSON values that a body of the same kind would have."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from gateway.api.fields.endpoints import BODIES
from gateway.api.fields.tables import fields_of
from protocol.wire.shapes import TextShape


def from_form(
    kind: str, form: Mapping[str, Any], parse: Callable[[Mapping[str, str]], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the body of this kind: a field that is no text is read as JSON, such as `0.5`.

    `parse` leaves what is no JSON the text that it is: its reader names the type that it expects.
    """
    texts = _texts(kind)
    others = {
        name: value for name, value in form.items() if name not in texts and isinstance(value, str)
    }
    return {**form, **parse(others)}


@cache
def _texts(kind: str) -> frozenset[str]:
    return frozenset(
        name for name, shape in fields_of(BODIES[kind]).items() if isinstance(shape, TextShape)
    )
