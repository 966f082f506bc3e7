"""Reads arguments whose parts are tags within tags, as MiniMax M3 writes them.

A tag has the name of a member, or is `item` in an array. The tool's schema gives the type of a
value; where it gives none, a value with tags inside is an object or an array.
"""

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from worker.output.chat_parser.json_walk import MalformedJson
from worker.output.chat_parser.sink import Sink
from worker.output.chat_parser.tag_reader import TagReader
from worker.output.formats.tool_format import Nested

_ITEM = "item"
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class ValueTypes:
    """Types of a value and of its parts, from the schema."""

    types: Set[str]
    """JSON types that it may have."""
    members: Mapping[str, "ValueTypes"] = field(default_factory=dict)
    item: "ValueTypes | None" = None


class NestedReader(TagReader):
    """Reads the arguments up to the tag after them, and then writes them as JSON."""

    def __init__(self, nested: Nested, name: str, whole: ValueTypes, sink: Sink) -> None:
        super().__init__(name, sink)
        self._nested = nested
        self._whole = whole
        self._parts: list[str] = []
        """The arguments so far."""

    def push(self, piece: str) -> None:
        """Take a `piece`; raises `MalformedJson` where no tag comes first."""
        nested = self._nested
        if not self.has_committed:
            self._text = (self._text + piece).lstrip()
            if not nested.mark.startswith(self._text):
                raise MalformedJson
            if self._text == nested.mark:
                self._parts.append(self._text)
                self._until = nested.close[-1]
                self._commit()
            return
        self._parts.append(piece)
        self._text = (self._text + piece)[-len(nested.close) :]
        if self._text == nested.close:
            inner = "".join(self._parts).removesuffix(nested.close)
            value = _members(inner, self._whole, nested, 0)
            self._sink.arguments(json.dumps(value, ensure_ascii=False))
            self.is_done = True


def _members(text: str, part: ValueTypes, nested: Nested, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for tag, inner in _elements(text, nested):
        known = part.members.get(tag, ValueTypes(frozenset()))
        found[tag] = _value(inner, known, nested, depth + 1)
    return found


def _value(text: str, part: ValueTypes, nested: Nested, depth: int) -> Any:
    if "string" in part.types or depth > _MAX_DEPTH:
        return text
    elements = _elements(text, nested)
    if part.members or (elements and elements[0][0] != _ITEM):
        return _members(text, part, nested, depth)
    if elements or (part.item is not None and not text.strip()):
        item = part.item or ValueTypes(frozenset())
        return [_value(inner, item, nested, depth + 1) for _, inner in elements]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _elements(text: str, nested: Nested) -> list[tuple[str, str]]:
    """Cut a text into its outermost elements; text between them is ignored."""
    found = []
    at = text.find(f"{nested.mark}<")
    while at >= 0:
        start = at + len(nested.mark) + 1
        inner = text.find(">", start) + 1
        if not inner:
            break
        tag = text[start : inner - 1]
        close = f"{nested.mark}</{tag}>"
        end = _end_of(text, inner, f"{nested.mark}<{tag}>", close)
        if end < 0:
            break
        found.append((tag, text[inner:end]))
        at = text.find(f"{nested.mark}<", end + len(close))
    return found


def _end_of(text: str, at: int, again: str, close: str) -> int:
    """Find the tag that closes an element, past elements of the same name inside it."""
    depth = 1
    end = text.find(close, at)
    while end >= 0:
        inner = text.find(again, at, end)
        if inner >= 0:
            depth, at = depth + 1, inner + len(again)
            continue
        depth, at = depth - 1, end + len(close)
        if not depth:
            return end
        end = text.find(close, at)
    return -1
