"""Values of the wire, checked and converted to the fields that the classes of messages declare.

Built once for each type. It knows no frames and no tags.
"""

import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from operator import itemgetter
from typing import Any

Unpacker = Callable[[Any], Any]
PLAIN = frozenset({int, str, float, bool, bytes, type(None)})
"""Types that msgpack writes and reads unchanged."""

OMITTED = "omitted"
"""Key of a field's metadata: the value that is omitted, if it is not the class's default."""
MAX_REASON = 500
"""Characters of a reason that a peer gives, or that repeats what it sent, in a log line."""


class ProtocolError(Exception):
    """The bytes are not a frame of this protocol."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason[:MAX_REASON])


@cache
def unpacker(kind: Any) -> Unpacker:
    """Build the function that checks and converts one value of a declared type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _free
    if _is_union(kind):
        return _union(args)
    if origin is tuple:
        return _tuple(args)
    if origin is dict:
        return _dict(args[1])
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    return _scalar(kind)


def _free(value: Any) -> Any:
    try:
        return _listed(value)
    except RecursionError as error:
        raise ProtocolError("nested too deep") from error


def _listed(value: Any) -> Any:
    """Give free-form JSON its lists back: msgpack hands out tuples."""
    if isinstance(value, tuple):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value


def _scalar(kind: type) -> Unpacker:
    def unpack(value: Any) -> Any:
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return float(value)
        raise ProtocolError(f"expected {kind.__name__}, got {type(value).__name__}")

    return unpack


def _enum(kind: type[Enum]) -> Unpacker:
    def unpack(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError as error:
            raise ProtocolError(str(error)) from error

    return unpack


def _union(args: tuple[Any, ...]) -> Unpacker:
    others = [unpacker(arg) for arg in args if arg is not type(None)]
    optional = type(None) in args

    def unpack(value: Any) -> Any:
        if value is None and optional:
            return None
        for other in others[:-1]:
            try:
                return other(value)
            except ProtocolError:
                continue
        return others[-1](value)

    return unpack


def _tuple(args: tuple[Any, ...]) -> Unpacker:
    items = [unpacker(arg) for arg in args if arg is not Ellipsis]
    uniform = len(args) == 2 and args[1] is Ellipsis
    columns = _columns(args[0]) if uniform else ()

    def unpack(value: Any) -> Any:
        if type(value) is not tuple:
            raise ProtocolError(f"expected an array, got {type(value).__name__}")
        if uniform:
            if columns and _are_rows(value, columns):
                return value
            return tuple([items[0](item) for item in value])
        if len(value) != len(items):
            raise ProtocolError(f"expected {len(items)} items, got {len(value)}")
        return tuple([item(element) for item, element in zip(items, value, strict=True)])

    return unpack


def _columns(kind: Any) -> tuple[frozenset[type], ...]:
    """Return the exact types of each item of a tuple with a length; empty for other kinds."""
    args = typing.get_args(kind)
    if typing.get_origin(kind) is not tuple or Ellipsis in args:
        return ()
    return tuple(_field(arg).plain for arg in args)


def _are_rows(rows: tuple[Any, ...], columns: tuple[frozenset[type], ...]) -> bool:
    """Tell whether all are tuples of exactly these types: a thousand rows then take no call."""
    if not {tuple}.issuperset(map(type, rows)) or not {len(columns)}.issuperset(map(len, rows)):
        return False
    return all(
        plain.issuperset(map(type, map(itemgetter(i), rows))) for i, plain in enumerate(columns)
    )


def _dict(arg: Any) -> Unpacker:
    item = unpacker(arg)

    def unpack(value: Any) -> Any:
        if type(value) is not dict:
            raise ProtocolError(f"expected a map, got {type(value).__name__}")
        if not {str}.issuperset(map(type, value)):
            raise ProtocolError("expected texts as keys of a map")
        return {key: item(element) for key, element in value.items()}

    return unpack


class _Field(typing.NamedTuple):
    """How the values of one field are checked.

    A value whose exact type is in `plain`, or a tuple whose items' types are in `items`, is taken
    as it is, without a call; `unpack` converts all other values, or refuses them with a reason.
    """

    plain: frozenset[type]
    items: frozenset[type]
    unpack: Unpacker


_NOTHING: frozenset[type] = frozenset()


def _field(kind: Any) -> _Field:
    plain, items = set[type](), _NOTHING
    # A union tries its types in order: what stands behind one that may convert waits its turn.
    for arg in typing.get_args(kind) if _is_union(kind) else (kind,):
        if arg in PLAIN and float not in plain:
            plain.add(arg)
        elif typing.get_origin(arg) is tuple and typing.get_args(arg)[1:] == (Ellipsis,):
            items = _field(typing.get_args(arg)[0]).plain
            break
        else:
            break
    return _Field(frozenset(plain), items, unpacker(kind))


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (types.UnionType, typing.Union)


def _dataclass(kind: type) -> Unpacker:
    hints = typing.get_type_hints(kind)
    known = {f.name: _field(hints[f.name]) for f in fields(kind)}
    required = {
        f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING
    }
    omitted = {f.name: f.metadata[OMITTED] for f in fields(kind) if OMITTED in f.metadata}

    def unpack(value: Any) -> Any:
        if type(value) is not dict:
            raise ProtocolError(f"{kind.__name__}: expected a map, got {type(value).__name__}")
        values: dict[str, Any] = {**omitted} if omitted else {}
        for name, item in value.items():
            if name not in known:
                continue
            plain, items, unpack_item = known[name]
            given = type(item)
            if given in plain or (items and given is tuple and items.issuperset(map(type, item))):
                values[name] = item
                continue
            try:
                values[name] = unpack_item(item)
            except ProtocolError as error:
                raise ProtocolError(f"{kind.__name__}.{name}: {error}") from error
        if required and not required <= values.keys():
            missing = ", ".join(sorted(required - values.keys()))
            raise ProtocolError(f"{kind.__name__}: missing {missing}")
        return kind(**values)

    return unpack
