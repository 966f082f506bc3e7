"""Declare a field once: type, default, limits, aliases, text. Everything else is read from that.

`param` puts a `Spec` beside a dataclass field. `read` fills such a dataclass from a JSON body or a
TOML table, naming the key the client sent in every complaint; `describe` gives the rows for
documents and `--help`. Out of range is an error and never a silent clamp.
"""

import difflib
import math
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from protocol.errors import InvalidRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What is known about one field beside its name and type."""

    doc: str
    low: float = -math.inf
    high: float = math.inf
    aliases: tuple[str, ...] = ()
    read: Callable[[Any], Any] | None = None
    """Turns a structured value into the field's type; raises ValueError with the reason."""
    stage: str = ""
    """Who consumes the field: `sampler`, `engine`, `link` or `gateway`."""
    choices: tuple[str, ...] = ()


def param(default: Any, doc: str, *aliases: str, **spec: Any) -> Any:
    """Declare a dataclass field with its `Spec`."""
    metadata = {"spec": Spec(doc=doc, aliases=aliases, **spec)}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Row:
    """One declared field: its name, resolved type, default and spec."""

    name: str
    kind: Any
    default: Any
    spec: Spec


@cache
def describe(cls: Hashable) -> tuple[Row, ...]:
    """List the declared fields of a dataclass in order; fields without a `Spec` are left out."""
    assert isinstance(cls, type) and is_dataclass(cls)
    hints = typing.get_type_hints(cls)
    return tuple(
        Row(f.name, hints[f.name], _default(f), f.metadata["spec"])
        for f in fields(cls)
        if "spec" in f.metadata
    )


def _default(f: "Field[Any]") -> Any:
    if f.default is not MISSING:
        return f.default
    return f.default_factory() if f.default_factory is not MISSING else MISSING


def read(defaults: T, body: Mapping[str, Any], *, path: str = "") -> T:
    """Return `defaults` with every declared field that `body` sets; unset and null keep it.

    Unknown keys are not this function's business (see `refuse_unknown`). A wrong type or a value
    out of range raises `InvalidRequest` with the key that was sent.
    """
    changes: dict[str, Any] = {}
    for row in describe(typing.cast(Hashable, type(defaults))):
        for key in (row.name, *row.spec.aliases):
            value = body.get(key)
            if value is not None:
                changes[row.name] = check(row, value, f"{path}{key}")
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


def check(row: Row, value: Any, key: str) -> Any:
    """Return `value` as the row's type within its limits, or raise `InvalidRequest`."""
    spec = row.spec
    if spec.read is not None:
        try:
            return spec.read(value)
        except ValueError as error:
            raise InvalidRequest(f"Field '{key}': {error}", param=key) from error
    value = _as_kind(row.kind, value, key)
    if spec.choices and value not in spec.choices:
        allowed = ", ".join(spec.choices)
        raise InvalidRequest(f"Field '{key}': must be one of {allowed}, but got {value}", param=key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        _check_limits(value, spec, key)
    return value


def _check_limits(value: float, spec: Spec, key: str) -> None:
    if math.isfinite(value) and spec.low <= value <= spec.high:
        return
    if not math.isfinite(value):
        raise InvalidRequest(f"Field '{key}': Value must be finite, but got {value}", param=key)
    low, high = _number(spec.low), _number(spec.high)
    raise InvalidRequest(
        f"Field '{key}': Value must be between {low} <= value <= {high}, but got {value}", param=key
    )


def _number(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) else str(value)


def _as_kind(kind: Any, value: Any, key: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _as_union(typing.get_args(kind), value, key)
    if origin is tuple:
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise _wrong(key, "array", value)
        item = typing.get_args(kind)[0]
        return tuple(_as_kind(item, one, f"{key}[{i}]") for i, one in enumerate(value))
    if is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            raise _wrong(key, "object", value)
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
        raise _wrong(key, "boolean", value)
    if kind is str:
        if isinstance(value, str):
            return value
        raise _wrong(key, "string", value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(key, "number", value)
    if kind is float:
        return float(value)
    # llama-server's JSON reader takes 5.0 where an integer is due, and clients do send it.
    if isinstance(value, float):
        if not math.isfinite(value) or value != int(value):
            raise InvalidRequest(f"Field '{key}': must be an integer, but got {value}", param=key)
        return int(value)
    return value


def _wrong(key: str, wanted: str, value: Any) -> InvalidRequest:
    return InvalidRequest(
        f"Field '{key}': type must be {wanted}, but is {json_type(value)}", param=key
    )


def json_type(value: Any) -> str:
    """Name the JSON type of a decoded value, as error messages say it."""
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
