"""Finds markers in text that is still arriving."""

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto
from itertools import groupby

from worker.output.formats.tool_format import ANY, KIND, NAME, ToolFormat

MAX_SPACE = 64
"""Longest white space that is held back; models can write white space without end."""
_MAX_ANY = 64
_CONSTRAIN = "<|constrain|>"


class MarkerKind(Enum):
    """What a marker means."""

    CALL = auto()
    CLOSER = auto()
    DROPPED = auto()
    REASONING = auto()
    BARE = auto()
    """A brace that may begin a call."""


@dataclass(frozen=True, slots=True)
class Marker:
    """Literals with optional white space between; `name` is the tool that an opener names."""

    kind: MarkerKind
    parts: tuple[str, ...]
    name: str = ""


class MarkerSet:
    """Markers to look for at the same time; those that stand first take precedence.

    A tool has a marker for each opener: those that begin alike are compared with the text once.
    """

    def __init__(self, markers: Iterable[Marker]) -> None:
        grouped = groupby(markers, lambda marker: marker.parts[0])
        self._groups = [(part, tuple(some)) for part, some in grouped]
        self._by_first: dict[str, list[tuple[str, Sequence[Marker]]]] = {}
        for group in self._groups:
            self._by_first.setdefault(group[0][:1], []).append(group)
        firsts = "".join(map(re.escape, self._by_first))
        self._first = re.compile(f"[{firsts}]" if firsts else "(?!)")

    def __bool__(self) -> bool:
        return bool(self._groups)

    def at(self, char: str) -> Sequence[tuple[str, Sequence[Marker]]]:
        """Return the first parts that may begin with a character, and the markers of each."""
        has_empty = "" in self._by_first  # a model may begin reasoning without a mark
        return self._groups if has_empty else self._by_first.get(char, ())

    def next(self, text: str, start: int) -> int:
        """Return the next place where a marker may begin, or -1."""
        found = self._first.search(text, start)
        return -1 if found is None else found.start()


class MarkerMatch(Enum):
    """Result of a match without a complete marker."""

    NONE = auto()
    PARTIAL = auto()
    """The text ended inside the marker."""


def openers(tools: ToolFormat, names: Set[str]) -> list[Marker]:
    """Write the openers of a format out for each tool, longer names first."""
    return [marker for parts in _lenient(tools) for marker in _written_out(parts, names)]


def later_openers(tools: ToolFormat, names: Set[str]) -> list[Marker]:
    """Write out what begins a call only directly after another; some models write commas."""
    if tools.is_sequence:
        return [Marker(MarkerKind.BARE, ("{",)), Marker(MarkerKind.BARE, (",", "{"))]
    return _written_out(tools.later, names) if tools.later else []


def _written_out(parts: tuple[str, ...], names: Set[str]) -> list[Marker]:
    if NAME not in parts:
        return [Marker(MarkerKind.CALL, parts)]
    return [
        Marker(MarkerKind.CALL, tuple(name if part == NAME else part for part in parts), name)
        for name in sorted(names, key=lambda name: (-len(name), name))
    ]


def _lenient(tools: ToolFormat) -> tuple[tuple[str, ...], ...]:
    """Return all openers without the space that is optional: between parts and before tags."""
    all_openers = tuple(
        (parts[0], *(part.lstrip() for part in parts[1:]))
        for parts in (*tools.openers, *tools.loose_openers)
    )
    if not (tools.tagged or tools.nested):
        return all_openers
    return tuple(tuple(part.rstrip() for part in parts) for parts in all_openers)


def match_marker(marker: Marker, text: str, at: int) -> int | MarkerMatch:
    """Return where a marker ends whose first part ends at a place."""
    for part in marker.parts[1:]:
        end = _part_end(part, text, _skip_space(text, at, part))
        if isinstance(end, MarkerMatch):
            return end
        at = end
    return at


def _part_end(part: str, text: str, at: int) -> int | MarkerMatch:
    if part == ANY:
        return _any_end(text, at)
    return _kind_end(text, at) if part == KIND else _literal_end(part, text, at)


def _kind_end(text: str, at: int) -> int | MarkerMatch:
    """Skip `json` and `<|constrain|>json`, if they are there."""
    end = _literal_end(_CONSTRAIN, text, at)
    if end is MarkerMatch.PARTIAL:
        return end
    end = _any_end(text, end if isinstance(end, int) else at)
    return at if end is MarkerMatch.NONE else end


def _skip_space(text: str, at: int, part: str) -> int:
    limit = at + MAX_SPACE
    while at < min(len(text), limit) and text[at].isspace() and not text.startswith(part, at):
        at += 1
    return at


def _literal_end(part: str, text: str, at: int) -> int | MarkerMatch:
    if text.startswith(part, at):
        return at + len(part)
    is_open = at + len(part) > len(text) and part.startswith(text[at:])
    return MarkerMatch.PARTIAL if is_open else MarkerMatch.NONE


def _any_end(text: str, at: int) -> int | MarkerMatch:
    end = at
    while end < len(text) and (text[end].isalnum() or text[end] in "_-"):
        end += 1
    if end == len(text):
        return MarkerMatch.PARTIAL if end - at <= _MAX_ANY else MarkerMatch.NONE
    return end if 0 < end - at <= _MAX_ANY else MarkerMatch.NONE


def match_any(markers: MarkerSet, text: str, at: int) -> tuple[Marker, int] | MarkerMatch:
    """Find the first of some markers that begins at a place; return it and where it ends.

    A marker that may still be completed takes precedence over those after it.
    """
    for part, group in markers.at(text[at : at + 1]):
        first = _literal_end(part, text, at)
        if first is MarkerMatch.NONE:
            continue
        if first is MarkerMatch.PARTIAL:
            return first
        for marker in group:
            end = match_marker(marker, text, first)
            if end is MarkerMatch.PARTIAL:
                return end
            if isinstance(end, int):
                return marker, end
    return MarkerMatch.NONE


def find(markers: MarkerSet, text: str) -> tuple[int, Marker, int] | tuple[int, None, int]:
    """Find the first marker: where it begins, which it is, where it ends.

    Without a marker, the first number is the length of the text that certainly contains none.
    """
    at = markers.next(text, 0)
    while at >= 0:
        found = match_any(markers, text, at)
        if found is MarkerMatch.PARTIAL:
            return at, None, at
        if isinstance(found, tuple):
            return at, *found
        at = markers.next(text, at + 1)
    return len(text), None, len(text)
