"""Messages to msgpack bytes and back.

A frame is `[seq, [[tag, {field: value}], …]]`. Fields at their default are left out, unknown fields
are ignored (a newer peer may send them), and every value is checked against the declared type: what
`decode` returns has the shape that `messages.py` promises, or a `ProtocolError` is raised.
"""

import types
import typing
from collections.abc import Callable, Hashable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

import msgpack

from protocol import messages as m
from protocol import side_tasks as s

TAGS: dict[str, type[m.Message]] = {
    "welcome": m.Welcome,
    "opened": m.Opened,
    "generate": m.Generate,
    "tokenize": m.Tokenize,
    "detokenize": m.Detokenize,
    "inspect": m.Inspect,
    "cancel": m.Cancel,
    "drain": m.Drain,
    "ping": m.Ping,
    "hello": m.Hello,
    "loading": m.Loading,
    "ready": m.Ready,
    "heartbeat": m.Heartbeat,
    "started": m.Started,
    "evicted": m.Evicted,
    "progress": m.Progress,
    "delta": m.Delta,
    "done": m.Done,
    "failed": m.Failed,
    "tokenized": m.Tokenized,
    "detokenized": m.Detokenized,
    "inspected": m.Inspected,
    "draining": m.Draining,
    "bye": m.Bye,
    "render": s.Render,
    "rendered": s.Rendered,
    "embed": s.Embed,
    "embedded": s.Embedded,
    "end_thoughts": s.EndThoughts,
    "thoughts_ended": s.ThoughtsEnded,
    "rerank": s.Rerank,
    "reranked": s.Reranked,
    "slot_action": s.SlotAction,
    "slot_acted": s.SlotActed,
    "set_lora": s.SetLora,
    "lora_listed": s.LoraListed,
    "set_system_prompt": s.SetSystemPrompt,
    "system_prompt_set": s.SystemPromptSet,
}
_TAG_OF = {cls: tag for tag, cls in TAGS.items()}

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""No honest frame comes near it; a larger one is refused before it is parsed."""


class ProtocolError(Exception):
    """The bytes are not a frame of this protocol."""


class Frame(typing.NamedTuple):
    """The messages of one ZeroMQ message; `seq` counts the frames of a connection from 0."""

    seq: int
    messages: tuple[m.Message, ...]


def encode(seq: int, messages: Sequence[m.Message]) -> bytes:
    """Pack messages into the bytes of one frame."""
    packed = msgpack.packb(
        [seq, [[_TAG_OF[type(message)], _pack(message)] for message in messages]]
    )
    return typing.cast(bytes, packed)


def decode(data: bytes) -> Frame:
    """Unpack the bytes of one frame; raises `ProtocolError` on anything malformed."""
    if len(data) > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {len(data)} bytes is larger than {MAX_FRAME_BYTES}")
    try:
        outer = msgpack.unpackb(data, use_list=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise ProtocolError(f"not msgpack: {error}") from error
    match outer:
        case (int(seq), tuple(items)):
            return Frame(seq, tuple(_message(item) for item in items))
    raise ProtocolError("a frame must be [seq, messages]")


def _message(item: Any) -> m.Message:
    match item:
        case (str(tag), dict(body)) if tag in TAGS:
            return typing.cast(m.Message, _unpacker(typing.cast(Hashable, TAGS[tag]))(body))
        case (str(tag), dict()):
            raise ProtocolError(f"unknown message '{tag}'")
    raise ProtocolError("a message must be [tag, fields]")


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
    result = {}
    for name, default in _defaults(typing.cast(Hashable, kind)):
        item = getattr(value, name)
        if item is not default and item != default:
            result[name] = item if type(item) in _PLAIN else _pack(item)
    return result


_PLAIN = frozenset({int, str, float, bool, bytes, type(None)})


@cache
def _defaults(cls: Hashable) -> tuple[tuple[str, Any], ...]:
    return tuple((f.name, f.default) for f in fields(typing.cast(type, cls)))


Unpacker = Callable[[Any], Any]


@cache
def _unpacker(kind: Any) -> Unpacker:
    """Build the function that checks and converts one value of a declared type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _listed
    if origin in (types.UnionType, typing.Union):
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


def _dataclass(kind: type) -> Unpacker:
    hints = typing.get_type_hints(kind)
    unpackers = {f.name: _unpacker(hints[f.name]) for f in fields(kind)}
    required = {
        f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING
    }

    def unpack(value: Any) -> Any:
        if type(value) is not dict:
            raise ProtocolError(f"{kind.__name__}: expected a map, got {type(value).__name__}")
        values = {}
        for name, item in value.items():
            unpacker = unpackers.get(name)
            if unpacker is not None:
                try:
                    values[name] = unpacker(item)
                except ProtocolError as error:
                    raise ProtocolError(f"{kind.__name__}.{name}: {error}") from error
        missing = required - values.keys()
        if missing:
            raise ProtocolError(f"{kind.__name__}: missing {', '.join(sorted(missing))}")
        return kind(**values)

    return unpack
