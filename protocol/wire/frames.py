"""Messages to the frames that carry them, so that a bad message fails only its own task.

Nearly always everything fits into one frame and is packed in one call. Where that fails, or the
frame becomes large, each message is packed by itself: what cannot be written is handed back with
the reason, and the rest goes out in as many frames as its bytes need.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from protocol.errors import ErrorCode, TaskError
from protocol.wire import codec
from protocol.wire.messages import Envelope, FrameItem, Generate

FRAME_BYTES = 16 * 1024 * 1024
"""Messages share a frame up to this size; a larger message has a frame of its own."""
_ROOM = 64
"""Bytes of a frame around its messages."""
_SHARED = ("prompt", "chat", "infill", "media", "schema", "chain")
"""Fields of a generation that its choices have in common, written once a frame."""


class FrameRefusal(NamedTuple):
    """An item that stays behind, and what its task ends with."""

    item: FrameItem
    error: TaskError


@dataclass(slots=True)
class Packed:
    """Frames in the order of their messages, and what is in none of them."""

    frames: list[bytes] = field(default_factory=list)
    refused: list[FrameRefusal] = field(default_factory=list)


def pack(seq: int, items: Sequence[FrameItem], *, limit: int = codec.MAX_FRAME_BYTES) -> Packed:
    """Write items into frames numbered from `seq`; never raises for what they hold."""
    if len(items) < 2 or sum(map(_is_generate, items)) < 2:
        try:
            data = codec.encode(seq, items)
        except codec.EncodeError:
            data = b""
        # A large message that is alone has its frame already: writing it anew takes 100 ms.
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
            if self._bodies and self._size + len(body) > min(FRAME_BYTES, self._limit) - _ROOM:
                self._flush()
                body = self._write(item)
        except codec.EncodeError as error:
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
        parts = codec.parts(item)
        for name, value in _shared(item):
            if (place := self._places.get((name, id(value)))) is not None:
                parts[-1][name] = codec.same_as(place)
        return codec.write(parts)

    def _note(self, item: FrameItem) -> None:
        for name, value in _shared(item):
            self._places.setdefault((name, id(value)), len(self._bodies))

    def _refuse(self, item: FrameItem, error: TaskError) -> None:
        self._packed.refused.append(FrameRefusal(item, error))

    def _flush(self) -> None:
        self._packed.frames.append(codec.join(self._seq, self._bodies))
        self._seq += 1
        self._bodies, self._size = [], 0
        self._places.clear()


def _shared(item: FrameItem) -> list[tuple[str, Any]]:
    if type(item) is not Envelope or type(item.payload) is not Generate:
        return []
    values = [(name, getattr(item.payload, name)) for name in _SHARED]
    return [(name, value) for name, value in values if value]
