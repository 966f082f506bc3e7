"""Messages to msgpack bytes and back.

A frame is `[seq, [item, …]]`. An item is `[tag, {field: value}]`, or for what belongs to a task
`[tag, task, attempt, slot, {field: value}]`. Fields at their default are left out, unknown fields
are ignored (a newer peer may send them), and every value is checked against the declared type: what
`decode` returns has the shape that `messages/` promises, or a `ProtocolError` is raised.
"""

import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgpack

from protocol.wire import messages as m
from protocol.wire.tags import PAYLOADS, TAGS

_TAG_OF: dict[type, str] = {cls: tag for tag, cls in TAGS.items()}
_FORM = "a message must be [tag, fields] or [tag, task, attempt, slot, fields]"

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""No honest frame comes near it; a larger one is refused before it is parsed."""
_SAME = 1
"""Code of the msgpack extension that stands for a field of an earlier message of the frame."""


class ProtocolError(Exception):
    """The bytes are not a frame of this protocol."""


class EncodeError(Exception):
    """A message holds a value that msgpack cannot write."""


class Frame(typing.NamedTuple):
    """The messages of one ZeroMQ message; `seq` counts the frames of a connection from 0."""

    seq: int
    messages: tuple[m.FrameItem, ...]


_UNWRITABLE = (OverflowError, ValueError, TypeError, KeyError, RecursionError, MemoryError)


def encode(seq: int, items: Sequence[m.FrameItem]) -> bytes:
    """Pack items into the bytes of one frame; raises `EncodeError`."""
    try:
        packed: bytes = msgpack.packb([seq, [_item(item) for item in items]])
    except _UNWRITABLE as error:
        raise EncodeError(f"{error!r:.200}") from error
    return packed


def parts(item: m.FrameItem) -> tuple[Any, ...]:
    """Return an item as msgpack writes it, the map of its fields last; raises `EncodeError`."""
    try:
        return _item(item)
    except _UNWRITABLE as error:
        raise EncodeError(f"{error!r:.200}") from error


def _item(item: m.FrameItem) -> tuple[Any, ...]:
    if type(item) is m.Envelope:
        (task_id, attempt, _), payload, slot = item
        return _TAG_OF[type(payload)], task_id, attempt, slot, _pack_fields(payload)
    return _TAG_OF[type(item)], _pack_fields(item)


def write(item: tuple[Any, ...]) -> bytes:
    """Pack one item for `join`; raises `EncodeError` for what msgpack has no bytes for."""
    try:
        packed: bytes = msgpack.packb(item)
    except _UNWRITABLE as error:
        raise EncodeError(f"{item[0]}: {error!r:.200}") from error
    return packed


def same_as(place: int) -> msgpack.ExtType:
    """Return what stands for the value that this field has in the frame's item at `place`."""
    return msgpack.ExtType(_SAME, place.to_bytes(4, "big"))


def join(seq: int, packed: Sequence[bytes]) -> bytes:
    """Put items that were written one by one into one frame."""
    packer = msgpack.Packer(autoreset=False)
    packer.pack_array_header(2)
    packer.pack(seq)
    packer.pack_array_header(len(packed))
    return b"".join((packer.bytes(), *packed))


def decode(data: bytes) -> Frame:
    """Unpack the bytes of one frame; raises `ProtocolError` on anything malformed."""
    if len(data) > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {len(data)} bytes is larger than {MAX_FRAME_BYTES}")
    try:
        outer = msgpack.unpackb(data, use_list=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise ProtocolError(f"not msgpack: {error}") from error
    if type(outer) is not tuple or len(outer) != 2:
        raise ProtocolError("a frame must be [seq, items]")
    seq, items = outer
    if not isinstance(seq, int) or type(items) is not tuple:
        raise ProtocolError("a frame must be [seq, items]")
    read = [_read_token(item) or _read_item(items, i) for i, item in enumerate(items)]
    return Frame(seq, tuple(read))


def _read_token(item: Any) -> m.Envelope | None:
    """Read one plain token, as nearly all items of a busy pool are; None for anything else.

    It says what `_read_item` says of such an item, in half the time.
    """
    if type(item) is not tuple or len(item) != 5 or item[0] != _DELTA:
        return None
    _, task_id, attempt, slot, body = item
    if type(body) is not dict or len(body) != 3:
        return None
    text, tokens, n = body.get("text"), body.get("tokens"), body.get("n_predicted")
    if type(tokens) is not tuple or len(tokens) != 1 or type(text) is not str:
        return None
    if not type(task_id) is type(attempt) is type(slot) is type(n) is type(tokens[0]) is int:
        return None
    delta = m.Delta(text=text, tokens=tokens, n_predicted=n)
    # What a named tuple's own constructor does, without its call.
    return _new(m.Envelope, (_new(m.TaskKey, (task_id, attempt, 0)), delta, slot))


_DELTA = _TAG_OF[m.Delta]
_new = tuple.__new__


def _read_item(items: tuple[Any, ...], place: int) -> m.FrameItem:
    item = items[place]
    if type(item) is not tuple or len(item) not in _LENGTHS:
        raise ProtocolError(_FORM)
    tag, body = item[0], item[-1]
    if type(tag) is not str or type(body) is not dict:
        raise ProtocolError(_FORM)
    cls, is_payload, unpack = _reader(tag)
    if is_payload is not (len(item) == 5):
        raise ProtocolError(f"{cls.__name__}: {_FORM}")
    if not is_payload:
        message: m.Message = unpack(body)
        return message
    _, task_id, attempt, slot, _ = item
    if not type(task_id) is type(attempt) is type(slot) is int:
        raise ProtocolError(f"{cls.__name__}: task, attempt and slot must be numbers")
    try:
        if cls is m.Generate:
            _restore_shared(items, place)
        payload: m.TaskMessage = unpack(body)
    except ProtocolError as error:
        payload = m.Malformed(reason=str(error))
    return m.Envelope(m.TaskKey(task_id, attempt), payload, slot)


_LENGTHS = (5, 2)


@cache
def _reader(tag: str) -> "tuple[type, bool, Unpacker]":
    """Return the class of a tag, whether an envelope carries it, and what reads its fields."""
    cls: Any = TAGS.get(tag)
    if cls is None:
        raise ProtocolError(f"unknown message '{tag}'")
    return cls, cls in PAYLOADS, _unpacker(cls)


def _restore_shared(items: tuple[Any, ...], place: int) -> None:
    """Put the values in that the frame's earlier messages have in the same fields."""
    body = items[place][-1]
    for name, value in body.items():
        if type(value) is not msgpack.ExtType:
            continue
        source = int.from_bytes(value.data, "big")
        if value.code != _SAME or source >= place:
            raise ProtocolError(f"{name}: refers to no earlier message of the frame")
        body[name] = items[source][-1].get(name)


def _pack(value: Any) -> Any:
    """Turn a declared value into what msgpack writes."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple or kind is list:
        return [_pack(item) for item in value]
    if kind is dict:
        return {key: _pack(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    return _pack_fields(value)


def _pack_fields(value: Any) -> dict[str, Any]:
    """Turn a dataclass into the map of its fields, those at their default left out."""
    cls: Any = type(value)
    names, defaults, read = _shape(cls)
    result = {}
    for name, default, item in zip(names, defaults, read(value), strict=True):
        if item is not default and item != default:
            kind = type(item)
            # Plain values and tuples of them, which is all that a token has, are written as is.
            is_plain = kind in _PLAIN or (kind is tuple and _PLAIN.issuperset(map(type, item)))
            result[name] = item if is_plain else _pack(item)
    return result


_PLAIN = frozenset({int, str, float, bool, bytes, type(None)})


class _MessageShape(NamedTuple):
    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    read: Callable[[Any], tuple[Any, ...]]
    """Returns the values of all fields in one call."""


@cache
def _shape(cls: Any) -> _MessageShape:
    names = tuple(f.name for f in fields(cls))
    defaults = tuple(f.default for f in fields(cls))
    if len(names) > 1:
        return _MessageShape(names, defaults, attrgetter(*names))
    return _MessageShape(names, defaults, lambda one: tuple(getattr(one, name) for name in names))


Unpacker = Callable[[Any], Any]


@cache
def _unpacker(kind: Any) -> Unpacker:
    """Build the function that checks and converts one value of a declared type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _listed
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
    others = [_unpacker(arg) for arg in args if arg is not type(None)]
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
    items = [_unpacker(arg) for arg in args if arg is not Ellipsis]
    uniform = len(args) == 2 and args[1] is Ellipsis

    def unpack(value: Any) -> Any:
        if type(value) is not tuple:
            raise ProtocolError(f"expected an array, got {type(value).__name__}")
        if uniform:
            return tuple([items[0](item) for item in value])
        if len(value) != len(items):
            raise ProtocolError(f"expected {len(items)} items, got {len(value)}")
        return tuple([item(one) for item, one in zip(items, value, strict=True)])

    return unpack


def _dict(arg: Any) -> Unpacker:
    item = _unpacker(arg)

    def unpack(value: Any) -> Any:
        if type(value) is not dict:
            raise ProtocolError(f"expected a map, got {type(value).__name__}")
        return {key: item(one) for key, one in value.items()}

    return unpack


class _Field(typing.NamedTuple):
    """How the values of one field are checked.

    What has an exact type of `plain`, or is a tuple of nothing but `items`, is taken as it is and
    costs no call; `unpack` says what becomes of everything else, and why it is refused.
    """

    plain: frozenset[type]
    items: frozenset[type]
    unpack: Unpacker


_NOTHING: frozenset[type] = frozenset()


def _field(kind: Any) -> _Field:
    plain, items = set[type](), _NOTHING
    # A union tries its types in order: what stands behind one that may convert waits its turn.
    for arg in typing.get_args(kind) if _is_union(kind) else (kind,):
        if arg in _PLAIN and float not in plain:
            plain.add(arg)
        elif typing.get_origin(arg) is tuple and typing.get_args(arg)[1:] == (Ellipsis,):
            items = _field(typing.get_args(arg)[0]).plain
            break
        else:
            break
    return _Field(frozenset(plain), items, _unpacker(kind))


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (types.UnionType, typing.Union)


def _dataclass(kind: type) -> Unpacker:
    hints = typing.get_type_hints(kind)
    known = {f.name: _field(hints[f.name]) for f in fields(kind)}
    required = {
        f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING
    }

    def unpack(value: Any) -> Any:
        if type(value) is not dict:
            raise ProtocolError(f"{kind.__name__}: expected a map, got {type(value).__name__}")
        values = {}
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
