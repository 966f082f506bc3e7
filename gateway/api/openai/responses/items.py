"""The events of a response's items: each item is closed before the next one begins, as at OpenAI.

llama-server closes all items at the end. Clients that show an item when it is whole then show
nothing before, and some open an empty block for the late end of an earlier one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.api.openai.responses.objects import (
    call_item,
    draw_id,
    message_item,
    reasoning_item,
    reasoning_part,
    text_part,
)
from protocol.wire.messages import ToolCallDelta

_Data = dict[str, Any]


class _Item(Protocol):
    """An item that is being written."""

    id: str
    pieces: list[str]
    number: int
    """Index of a call; 0 for others."""

    def whole(self, log_probs: Sequence[_Data]) -> _Data:
        """Return the item in one piece."""
        ...

    def opens(self, index: int) -> list[_Data]:
        """Return the events that begin it as the output of this index."""
        ...

    def adds(self, index: int, text: str) -> _Data:
        """Return the event of a piece."""
        ...

    def ends(self, index: int, whole: _Data) -> list[_Data]:
        """Return the events that end it, besides that of every item."""
        ...


@dataclass(slots=True)
class _Reasoning:
    number: int = 0
    id: str = field(default_factory=lambda: draw_id("rs_"))
    pieces: list[str] = field(default_factory=list)

    def whole(self, log_probs: Sequence[_Data]) -> _Data:
        return reasoning_item(self.id, "".join(self.pieces), "completed")

    def opens(self, index: int) -> list[_Data]:
        part = {"type": "response.content_part.added", **_part_place(self.id, index)}
        item = reasoning_item(self.id, None, "in_progress")
        return [_added(index, item), part | {"part": reasoning_part("")}]

    def adds(self, index: int, text: str) -> _Data:
        place = _part_place(self.id, index)
        return {"type": "response.reasoning_text.delta", "delta": text, **place}

    def ends(self, index: int, whole: _Data) -> list[_Data]:
        place = _part_place(self.id, index)
        (part,) = whole["content"]
        return [
            {"type": "response.reasoning_text.done", **place, "text": part["text"]},
            {"type": "response.content_part.done", **place, "part": part},
        ]


@dataclass(slots=True)
class _Text:
    number: int = 0
    id: str = field(default_factory=lambda: draw_id("msg_"))
    pieces: list[str] = field(default_factory=list)

    def whole(self, log_probs: Sequence[_Data]) -> _Data:
        part = text_part("".join(self.pieces), log_probs)
        return message_item(self.id, (part,), "completed")

    def opens(self, index: int) -> list[_Data]:
        part = {"type": "response.content_part.added", **_part_place(self.id, index)}
        item = message_item(self.id, (), "in_progress")
        return [_added(index, item), part | {"part": text_part("")}]

    def adds(self, index: int, text: str) -> _Data:
        place = _part_place(self.id, index)
        return {"type": "response.output_text.delta", **place, "delta": text}

    def ends(self, index: int, whole: _Data) -> list[_Data]:
        place = _part_place(self.id, index)
        (part,) = whole["content"]
        text = {"text": part["text"], "logprobs": part["logprobs"]}
        return [
            {"type": "response.output_text.done", **place, **text},
            {"type": "response.content_part.done", **place, "part": part},
        ]


class _Call:
    def __init__(self, first: ToolCallDelta) -> None:
        self._named = ToolCallDelta(index=first.index, id=first.id, name=first.name)
        self.number = first.index
        self.id = call_item(self._named, "in_progress")["id"]
        self.pieces: list[str] = []

    def whole(self, log_probs: Sequence[_Data]) -> _Data:
        return call_item(self._named, "completed") | {"arguments": "".join(self.pieces)}

    def opens(self, index: int) -> list[_Data]:
        return [_added(index, call_item(self._named, "in_progress"))]

    def adds(self, index: int, text: str) -> _Data:
        place = {"item_id": self.id, "output_index": index}
        return {"type": "response.function_call_arguments.delta", "delta": text, **place}

    def ends(self, index: int, whole: _Data) -> list[_Data]:
        place = {"item_id": self.id, "output_index": index}
        told = {"name": whole["name"], "arguments": whole["arguments"]}
        return [{"type": "response.function_call_arguments.done", **place, **told}]


class ItemEvents:
    """Turns what is added to an answer into the events of its items."""

    def __init__(self, take_log_probs: Callable[[], Sequence[_Data]]) -> None:
        """`take_log_probs` returns those of a text that ends."""
        self._take_log_probs = take_log_probs
        self._open: _Item | None = None
        self.closed: list[_Data] = []
        """The items that are whole, in their order."""

    def reasoning(self, text: str) -> list[_Data]:
        """Return the events of a piece of reasoning."""
        begun = [] if isinstance(self._open, _Reasoning) else self._begin(_Reasoning())
        return [*begun, self._add(text)]

    def text(self, text: str, log_probs: Sequence[_Data]) -> list[_Data]:
        """Return the events of a piece of text."""
        begun = [] if isinstance(self._open, _Text) else self._begin(_Text())
        return [*begun, self._add(text) | {"logprobs": log_probs}]

    def call(self, piece: ToolCallDelta) -> list[_Data]:
        """Return the events of a piece of a call."""
        is_open = isinstance(self._open, _Call) and self._open.number == piece.index
        begun = [] if is_open else self._begin(_Call(piece))
        return [*begun, self._add(piece.arguments)] if piece.arguments else begun

    def close(self) -> list[_Data]:
        """Return the events that end the open item, if there is one."""
        item = self._open
        if item is None:
            return []
        self._open = None
        index = len(self.closed)
        whole = item.whole(self._take_log_probs() if isinstance(item, _Text) else ())
        self.closed.append(whole)
        done = {"type": "response.output_item.done", "output_index": index, "item": whole}
        return [*item.ends(index, whole), done]

    def _begin(self, item: _Item) -> list[_Data]:
        ended = self.close()
        self._open = item
        return ended + item.opens(len(self.closed))

    def _add(self, text: str) -> _Data:
        assert self._open is not None
        self._open.pieces.append(text)
        return self._open.adds(len(self.closed), text)


def _added(index: int, item: _Data) -> _Data:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def _part_place(id_: str, index: int) -> _Data:
    return {"item_id": id_, "output_index": index, "content_index": 0}
