"""Declare a field once: type, default, limits, aliases, text. Everything else is read from that.

`param` puts a `FieldSpec` beside a dataclass field. `read` fills such a dataclass from a JSON body
or a TOML table, and names the key that the client sent in every error; `describe` gives the rows
for documents and `--help`. A value out of range is an error, except where llama-server clamps it
(`FieldSpec.clamps`).
"""

import difflib
import math
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from protocol.errors import InvalidRequest
from protocol.wire.shapes import (
    FLOAT32_MAX,
    INT32_MAX,
    Bound,
    Bounds,
    Clamp,
    Either,
    FieldShape,
    Flag,
    Items,
    Number,
    TextShape,
    number,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    """Properties of one field beside its name and type."""

    doc: str
    low: Bound = -math.inf
    high: Bound = math.inf
    clamps: Clamp = Clamp.NO
    aliases: tuple[str, ...] = ()
    read: Callable[[Any], Any] | None = None
    """Turns a structured value into the field's type; raises ValueError with the reason."""
    take: Callable[[Any], Any] | None = None
    """The same for a request, where llama-server drops entries that it does not know."""
    low_is_default: bool = False
    """A number below `low` stands for the default."""
    max_chars: Bound | None = None
    max_items: Bound | None = None
    shape: FieldShape | None = None
    """The bounds of a structured value; others follow from the type."""
    choices: tuple[str, ...] = ()


def param(default: Any, doc: str, *aliases: str, **spec: Any) -> Any:
    """Declare a dataclass field with its `FieldSpec`."""
    metadata = {"spec": FieldSpec(doc=doc, aliases=aliases, **spec)}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One declared field: its name, resolved type, default and spec."""

    name: str
    kind: Any
    default: Any
    spec: FieldSpec


@cache
def describe(cls: Hashable) -> tuple[FieldRow, ...]:
    """List the declared fields of a dataclass in order: those with a `FieldSpec`."""
    assert isinstance(cls, type) and is_dataclass(cls)
    hints = typing.get_type_hints(cls)
    return tuple(
        FieldRow(f.name, hints[f.name], f.default, f.metadata["spec"])
        for f in fields(cls)
        if "spec" in f.metadata
    )


def shape_of(row: FieldRow) -> FieldShape:
    """Return the bounds of a declared field."""
    return row.spec.shape or _shape(row.kind, row)


def _shape(kind: Any, row: FieldRow) -> FieldShape:
    spec = row.spec
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        real = [_shape(arg, row) for arg in args if arg is not type(None)]
        return real[0] if len(real) == 1 else Either(tuple(real))
    if origin is tuple and spec.max_items is not None:
        return Items(_shape(args[0], row), spec.max_items)
    if kind is bool:
        return Flag()
    if kind in (int, float):
        return Number(low=spec.low, high=spec.high, whole=kind is int, clamps=spec.clamps)
    if kind is str and (spec.max_chars is not None or spec.choices):
        longest = max(map(len, spec.choices), default=0)
        return TextShape(max_length=longest if spec.max_chars is None else spec.max_chars)
    raise TypeError(f"{row.name}: a {kind} needs a bound")


def read(
    defaults: T, body: Mapping[str, Any], *, path: str = "", bounds: Bounds | None = None
) -> T:
    """Return `defaults` with every declared field that `body` sets; unset and null keep it.

    Unknown keys are ignored (see `refuse_unknown`). A wrong type or a value
    out of range raises `InvalidRequest` with the key that was sent. With `bounds` it is a request
    and no configuration: what llama-server takes is taken as there, 8.9 for an integer as 8.
    """
    changes: dict[str, Any] = {}
    for row in describe(typing.cast(Hashable, type(defaults))):
        for key in (row.name, *row.spec.aliases):
            value = body.get(key)
            if value is not None:
                changes[row.name] = check(row, value, f"{path}{key}", bounds)
                if row.spec.low_is_default and changes[row.name] < row.spec.low:
                    changes[row.name] = getattr(defaults, row.name)
                break
    if not changes:
        return defaults
    values = {f.name: getattr(defaults, f.name) for f in fields(defaults)}  # type: ignore[arg-type]
    return type(defaults)(**(values | changes))


def refuse_unknown(cls: type, body: Mapping[str, Any], *, path: str = "") -> None:
    """Raise `InvalidRequest` for a key that `cls` does not declare, with the nearest one."""
    known = {name for row in describe(cls) for name in (row.name, *row.spec.aliases)}
    for key in body:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise InvalidRequest(f"unknown key '{path}{key}'{hint}", param=f"{path}{key}")


def check(row: FieldRow, value: Any, key: str, bounds: Bounds | None = None) -> Any:
    """Return `value` as the row's type within its limits, or raise `InvalidRequest`."""
    spec = row.spec
    if spec.read is not None:
        reader = spec.read if bounds is None else spec.take or spec.read
        try:
            return reader(value)
        except ValueError as error:
            raise InvalidRequest(f"Field '{key}': {error}", param=key) from error
    if bounds is not None and isinstance(value, float) and row.kind in _WHOLE:
        value = math.trunc(value)
    value = _as_kind(row.kind, value, key)
    if spec.choices and value not in spec.choices:
        allowed = ", ".join(filter(None, spec.choices))
        raise InvalidRequest(f"Field '{key}': must be one of {allowed}, but got {value}", param=key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _within(value, spec, key, bounds)
    if row.kind == tuple[float, ...]:
        return tuple(_within(item, spec, f"{key}[{i}]", bounds) for i, item in enumerate(value))
    return value


_WHOLE = (int, int | None)
_MAX_BITS = 1023
"""Of a whole number: larger ones, which TOML can write, are no float."""


def _within(value: float, spec: FieldSpec, key: str, bounds: Bounds | None) -> float:
    low, high = _limit(spec.low, bounds), _limit(spec.high, bounds)
    if not math.isfinite(value):
        raise InvalidRequest(f"Field '{key}': Value must be finite, but got {value}", param=key)
    if spec.clamps is Clamp.REQUEST and bounds is None:
        low, high = (-INT32_MAX, INT32_MAX) if type(value) is int else (-FLOAT32_MAX, FLOAT32_MAX)
    if value < low and spec.clamps.is_both and not spec.low_is_default:
        return type(value)(low)
    if value > high and spec.clamps is not Clamp.NO:
        return type(value)(high)
    if low <= value <= high or (value < low and spec.low_is_default):
        return value
    text = f"Value must be between {number(low)} <= value <= {number(high)}, but got {value}"
    raise InvalidRequest(f"Field '{key}': {text}", param=key)


def _limit(bound: Bound, bounds: Bounds | None) -> float:
    if isinstance(bound, str):
        return math.inf if bounds is None else bounds[bound]
    return bound


def _as_kind(kind: Any, value: Any, key: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _as_union(typing.get_args(kind), value, key)
    if origin is tuple:
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise wrong_type(key, "array", value)
        item = typing.get_args(kind)[0]
        return tuple(_as_kind(item, element, f"{key}[{i}]") for i, element in enumerate(value))
    if is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            raise wrong_type(key, "object", value)
        refuse_unknown(kind, value, path=f"{key}.")
        return read(kind(), value, path=f"{key}.")
    return _as_scalar(kind, value, key)


def _as_union(kinds: tuple[Any, ...], value: Any, key: str) -> Any:
    real = [kind for kind in kinds if kind is not type(None)]
    for kind in real[:-1]:
        try:
            return _as_kind(kind, value, key)
        except InvalidRequest:
            continue
    return _as_kind(real[-1], value, key)


def _as_scalar(kind: Any, value: Any, key: str) -> Any:
    if kind is bool:
        if isinstance(value, bool):
            return value
        raise wrong_type(key, "boolean", value)
    if kind is str:
        if isinstance(value, str):
            return value
        raise wrong_type(key, "string", value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(key, "number", value)
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise InvalidRequest(f"Field '{key}': the number is too large", param=key)
    if kind is float:
        return float(value)
    # llama-server's JSON reader takes 5.0 where an integer is due, and clients do send it.
    if isinstance(value, float):
        if not math.isfinite(value) or value != int(value):
            raise InvalidRequest(f"Field '{key}': must be an integer, but got {value}", param=key)
        return int(value)
    return value


def wrong_type(key: str, wanted: str, value: Any) -> InvalidRequest:
    """Name the field, the type that it must have, and the one that it has."""
    return InvalidRequest(
        f"Field '{key}': type must be {wanted}, but is {json_type(value)}", param=key
    )


def json_type(value: Any) -> str:
    """Name the JSON type of a decoded value, as in error messages."""
    if value is None:
        return "null"
    for kind, name in _JSON_TYPES:
        if isinstance(value, kind):
            return name
    return type(value).__name__


_JSON_TYPES: tuple[tuple[type | types.UnionType, str], ...] = (
    (bool, "boolean"),
    (int | float, "number"),
    (str, "string"),
    (list | tuple, "array"),
    (Mapping, "object"),
)
