"""Messages to msgpack bytes and back.

A frame is `[seq, [item, …]]`. An item is `[tag, {field: value}]`, or for what belongs to a task
`[tag, task, attempt, slot, {field: value}]`. Fields at their default are left out, unknown fields
are ignored (a newer peer may send them), and every value is checked against the declared type: what
`decode` returns has the shape that `messages/` promises, or a `ProtocolError` is raised.

A bad message fails only its own task. Nearly always everything fits into one frame and is packed in
one call. Where that fails, or the frame becomes large, each message is packed by itself: what
cannot be written is handed back with the reason, and the rest goes out in as many frames as its
bytes need.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgpack

from protocol.errors import ErrorCode, TaskError
from protocol.wire import messages as m
from protocol.wire.field_readers import OMITTED, ProtocolError, Unpacker, unpacker
from protocol.wire.messages import Envelope, FrameItem, Generate
from protocol.wire.tags import PAYLOADS, TAGS

_TAG_OF: dict[type, str] = {cls: tag for tag, cls in TAGS.items()}
_FORM = "a message must be [tag, fields] or [tag, task, attempt, slot, fields]"

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""Far above any frame of a correct peer; a larger one is refused before it is parsed."""
FRAME_BYTES = 16 * 1024 * 1024
"""Messages share a frame up to this size; a larger message gets a separate frame."""
MAX_MESSAGES = 16 * 1024
"""Messages of one frame: reading as many takes 0.1 s, and no engine step has a tenth of them."""
_LARGE = 1024 * 1024
"""Values of larger frames are counted while they are read: a byte may become 70 in memory."""
MAX_VALUES = 16 * 1024 * 1024
"""Values of one frame; a list or a map counts as many more (`_LIST_COST`)."""
_LONGEST_LIST = 16 * 1024 * 1024
"""Entries of one list or map; msgpack refuses a longer one."""
_LIST_COST = 8
"""An empty map takes 64 bytes, as much as eight values in a list."""
_ROOM = 64
"""Bytes of a frame around its messages."""
_SHARED = ("prompt", "chat", "infill", "media", "schema", "chain")
"""Fields of a generation that its choices have in common, written once a frame."""
_SAME = 1
"""Code of the msgpack extension that stands for a field of an earlier message of the frame."""


class EncodeError(Exception):
    """A message holds a value that msgpack cannot write."""


class Frame(NamedTuple):
    """The messages of one ZeroMQ message; `seq` counts the frames of a connection from 0."""

    seq: int
    messages: tuple[FrameItem, ...]


_UNWRITABLE = (OverflowError, ValueError, TypeError, KeyError, RecursionError, MemoryError)


def encode(seq: int, items: Sequence[FrameItem]) -> bytes:
    """Pack items into the bytes of one frame; raises `EncodeError`."""
    try:
        packed: bytes = msgpack.packb([seq, [_item(item) for item in items]], default=_pack)
    except _UNWRITABLE as error:
        raise EncodeError(f"{error!r:.200}") from error
    return packed


def _item(item: FrameItem) -> tuple[Any, ...]:
    if type(item) is Envelope:
        (task_id, attempt, _), payload, slot = item
        return _TAG_OF[type(payload)], task_id, attempt, slot, _pack_fields(payload)
    return _TAG_OF[type(item)], _pack_fields(item)


def decode(data: bytes) -> Frame:
    """Unpack the bytes of one frame; raises `ProtocolError` on anything malformed."""
    if len(data) > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {len(data)} bytes is larger than {MAX_FRAME_BYTES}")
    try:
        hooks: dict[str, Any] = {}
        if len(data) > _LARGE:
            _check_count(_count_of(data))
            hooks = _counting()
        outer = msgpack.unpackb(data, use_list=False, strict_map_key=False, **hooks)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise ProtocolError(f"not msgpack: {error}") from error
    if type(outer) is not tuple or len(outer) != 2:
        raise ProtocolError("a frame must be [seq, items]")
    seq, items = outer
    if type(seq) is not int or type(items) is not tuple:
        raise ProtocolError("a frame must be [seq, items]")
    _check_count(len(items))
    shared = _SharedFields(items)
    read = [_read_token(item) or _read_item(item, i, shared) for i, item in enumerate(items)]
    return Frame(seq, tuple(read))


def _count_of(data: bytes) -> int:
    """Return how many messages a frame has, from its first bytes."""
    head = msgpack.Unpacker()
    head.feed(data[:_ROOM])
    head.read_array_header()
    head.skip()
    n: int = head.read_array_header()
    return n


def _check_count(n: int) -> None:
    if n > MAX_MESSAGES:
        raise ProtocolError(f"{n} messages in a frame are more than {MAX_MESSAGES}")


def _counting() -> dict[str, Any]:
    """Return hooks and limits that stop msgpack at a frame that would fill the memory."""
    n_left = MAX_VALUES

    def count(value: Any) -> Any:
        nonlocal n_left
        n_left -= _LIST_COST + len(value)
        if n_left < 0:
            raise ValueError("too many values")
        return value

    longest = {"max_array_len": _LONGEST_LIST, "max_map_len": _LONGEST_LIST}
    return {"list_hook": count, "object_hook": count, **longest}


def _read_token(item: Any) -> Envelope | None:
    """Read one plain token, as nearly all items of a busy pool are; None for anything else.

    The result is that of `_read_item`, in half the time.
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
    return _new(Envelope, (_new(m.TaskKey, (task_id, attempt, 0)), delta, slot))


_DELTA = _TAG_OF[m.Delta]
_new = tuple.__new__


def _read_item(item: Any, place: int, shared: "_SharedFields") -> FrameItem:
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
        if cls is Generate:
            shared.restore(place)
        payload: m.TaskMessage = unpack(body)
    except ProtocolError as error:
        payload = m.Malformed(reason=str(error))
    return Envelope(m.TaskKey(task_id, attempt), payload, slot)


_LENGTHS = (5, 2)
"""Of an item in an envelope, and of one without."""


@cache
def _reader(tag: str) -> "tuple[type, bool, Unpacker]":
    """Return the class of a tag, whether an envelope carries it, and what reads its fields."""
    cls: Any = TAGS.get(tag)
    if cls is None:
        raise ProtocolError(f"unknown message '{tag}'")
    return cls, cls in PAYLOADS, unpacker(cls)


class _SharedFields:
    """Fields of a frame's messages that later messages of it refer to."""

    __slots__ = ("_items", "_n_left", "_sizes")

    def __init__(self, items: tuple[Any, ...]) -> None:
        self._items = items
        self._n_left = MAX_VALUES
        self._sizes: dict[tuple[str, int], int] = {}

    def restore(self, place: int) -> None:
        """Put the values in that earlier messages have in the same fields.

        Each of them is checked, and some are copied, once more, so they count as values again.
        """
        body = self._items[place][-1]
        for name, value in body.items():
            if type(value) is not msgpack.ExtType:
                continue
            source = int.from_bytes(value.data, "big")
            if value.code != _SAME or source >= place:
                raise ProtocolError(f"{name}: refers to no earlier message of the frame")
            body[name] = self._take(name, source)

    def _take(self, name: str, source: int) -> Any:
        value = self._items[source][-1].get(name)
        if self._n_left >= 0:
            if (name, source) not in self._sizes:
                self._sizes[name, source] = _n_values(value)
            self._n_left -= self._sizes[name, source]
        if self._n_left < 0:
            raise ProtocolError(f"{name}: too many values")
        return value


def _n_values(value: Any) -> int:
    n, open_values = 0, [value]
    while open_values:
        one = open_values.pop()
        n += 1
        if type(one) is tuple:
            open_values += one
        elif type(one) is dict:
            open_values += one.values()
    return n


def _pack(value: Any) -> Any:
    """Turn what msgpack does not know into what it does: an enum, or a dataclass."""
    return value.value if isinstance(value, Enum) else _pack_fields(value)


def _pack_fields(value: Any) -> dict[str, Any]:
    """Turn a dataclass into the map of its fields, those at their default left out."""
    cls: Any = type(value)
    names, defaults, read = _shape(cls)
    return {
        name: item
        for name, default, item in zip(names, defaults, read(value), strict=True)
        if item is not default and item != default
    }


class _MessageShape(NamedTuple):
    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    read: Callable[[Any], tuple[Any, ...]]
    """Returns the values of all fields in one call."""


@cache
def _shape(cls: Any) -> _MessageShape:
    names = tuple(f.name for f in fields(cls))
    defaults = tuple(f.metadata.get(OMITTED, f.default) for f in fields(cls))
    if len(names) > 1:
        return _MessageShape(names, defaults, attrgetter(*names))
    return _MessageShape(
        names, defaults, lambda message: tuple(getattr(message, name) for name in names)
    )


class FrameRefusal(NamedTuple):
    """An item that cannot be sent, and the error that its task ends with."""

    item: FrameItem
    error: TaskError


@dataclass(slots=True)
class Packed:
    """Frames in the order of their messages, and the messages that are in none of them."""

    frames: list[bytes] = field(default_factory=list)
    refused: list[FrameRefusal] = field(default_factory=list)


def pack(seq: int, items: Sequence[FrameItem], *, limit: int = MAX_FRAME_BYTES) -> Packed:
    """Write items into frames numbered from `seq`; never raises for what they hold."""
    if len(items) < 2 or (len(items) <= MAX_MESSAGES and sum(map(_is_generate, items)) < 2):
        try:
            data = encode(seq, items)
        except EncodeError:
            data = b""
        # A large message that is alone has its frame already: writing it again takes 100 ms.
        if data and len(data) <= (limit if len(items) == 1 else min(FRAME_BYTES, limit)):
            return Packed([data])
    writer = _FrameWriter(seq, limit)
    for item in items:
        writer.add(item)
    return writer.finish()


def _is_generate(item: FrameItem) -> bool:
    return type(item) is Envelope and type(item.payload) is Generate


class _FrameWriter:
    """Fills one frame after the other."""

    def __init__(self, seq: int, limit: int) -> None:
        self._seq = seq
        self._limit = limit
        self._bodies: list[bytes] = []
        self._size = 0
        self._places: dict[tuple[str, int], int] = {}
        """Field and identity of a shared value -> the message of this frame that has it."""
        self._packed = Packed()

    def add(self, item: FrameItem) -> None:
        try:
            body = self._write(item)
            is_full = self._size + len(body) > min(FRAME_BYTES, self._limit) - _ROOM
            if self._bodies and (is_full or len(self._bodies) >= MAX_MESSAGES):
                self._flush()
                body = self._write(item)
        except EncodeError as error:
            text = f"the request holds a value that cannot be passed on: {error}"
            self._refuse(item, TaskError(ErrorCode.INVALID_REQUEST, text))
            return
        if len(body) > self._limit - _ROOM:
            text = f"{len(body)} bytes are more than the {self._limit} of one message"
            self._refuse(item, TaskError(ErrorCode.TOO_LARGE, text))
            return
        self._note(item)
        self._bodies.append(body)
        self._size += len(body)

    def finish(self) -> Packed:
        if self._bodies:
            self._flush()
        return self._packed

    def _write(self, item: FrameItem) -> bytes:
        try:
            written = _item(item)
            for name, value in _shared(item):
                if (place := self._places.get((name, id(value)))) is not None:
                    written[-1][name] = msgpack.ExtType(_SAME, place.to_bytes(4, "big"))
            packed: bytes = msgpack.packb(written, default=_pack)
        except _UNWRITABLE as error:
            raise EncodeError(f"{error!r:.200}") from error
        return packed

    def _note(self, item: FrameItem) -> None:
        for name, value in _shared(item):
            self._places.setdefault((name, id(value)), len(self._bodies))

    def _refuse(self, item: FrameItem, error: TaskError) -> None:
        self._packed.refused.append(FrameRefusal(item, error))

    def _flush(self) -> None:
        packer = msgpack.Packer(autoreset=False)
        packer.pack_array_header(2)
        packer.pack(self._seq)
        packer.pack_array_header(len(self._bodies))
        self._packed.frames.append(b"".join((packer.bytes(), *self._bodies)))
        self._seq += 1
        self._bodies, self._size = [], 0
        self._places.clear()


def _shared(item: FrameItem) -> list[tuple[str, Any]]:
    if type(item) is not Envelope or type(item.payload) is not Generate:
        return []
    values = [(name, getattr(item.payload, name)) for name in _SHARED]
    return [(name, value) for name, value in values if value]
