"""Finds markers in text that is still arriving."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto
from itertools import groupby, takewhile

from worker.output.formats.tool_format import ANY, KIND, NAME, ToolFormat

MAX_SPACE = 64
"""Longest white space that is held back; models can write white space without end."""
_MAX_ANY = 64
_CONSTRAIN = "<|constrain|>"
_LAST = chr(0x10FFFF)
"""Sorts after all text; no literal contains it."""


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


class MarkerMatch(Enum):
    """Result of a match without a complete marker."""

    NONE = auto()
    PARTIAL = auto()
    """The text ended inside the marker."""


class _MarkerTexts:
    """Numbered texts; finds those that stand at a place without comparing each."""

    def __init__(self, literals: Iterable[tuple[int, str]]) -> None:
        self._numbers: dict[str, list[int]] = {}
        for number, literal in literals:
            self._numbers.setdefault(literal, []).append(number)
        self._sorted = sorted(self._numbers)
        self._firsts = [self._numbers[literal][0] for literal in self._sorted]
        self._lengths = sorted(set(map(len, self._sorted)))

    def at(self, text: str, at: int) -> set[int]:
        """Return the numbers of those at a place, and of the first that the end of the text cuts.

        A cut one is a partial match, which takes precedence over those after it.
        """
        longest = self._lengths[-1] if self._lengths else 0
        rest = text[at : at + longest]
        lengths = (n for n in self._lengths if n <= len(rest))
        found = {number for n in lengths for number in self._numbers.get(rest[:n], ())}
        if len(rest) < longest:
            begin, end = (bisect_left(self._sorted, edge) for edge in (rest, rest + _LAST))
            found.update(sorted(self._firsts[begin:end])[:1])
        return found


class _AlikeMarkers:
    """Markers with the same first part; a tool has one for each opener."""

    def __init__(self, markers: Sequence[Marker]) -> None:
        self._markers = markers
        columns = zip(*(marker.parts for marker in markers), strict=False)
        same = takewhile(lambda column: len(set(column)) == 1, columns)
        self._stem = tuple(column[0] for column in same)
        """The parts that all of them begin with."""
        n = len(self._stem)
        nexts = {i: "".join(marker.parts[n : n + 1]) for i, marker in enumerate(markers)}
        self._others = {i for i, part in nexts.items() if not _is_after_space(part)}
        """Numbers of those that are always compared."""
        self._literals = _MarkerTexts(item for item in nexts.items() if item[0] not in self._others)

    def match(self, text: str, at: int) -> tuple[Marker, int] | MarkerMatch:
        """Find the first marker at a place, as `MarkerSet.match` does."""
        fork = _literal_end(self._stem[0], text, at)
        if isinstance(fork, int):
            fork = _parts_end(self._stem[1:], text, fork)
        if isinstance(fork, MarkerMatch):
            return fork
        named = self._literals.at(text, _skip_space(text, fork))
        for i in sorted(named | self._others):
            marker = self._markers[i]
            end = _parts_end(marker.parts[len(self._stem) :], text, fork)
            if end is MarkerMatch.PARTIAL:
                return end
            if isinstance(end, int):
                return marker, end
        return MarkerMatch.NONE


class MarkerSet:
    """Markers to look for at the same time; those that stand first take precedence."""

    def __init__(self, markers: Iterable[Marker]) -> None:
        grouped = [(part, tuple(some)) for part, some in groupby(markers, lambda m: m.parts[0])]
        self._groups = [_AlikeMarkers(some) for _, some in grouped]
        self._literals = _MarkerTexts((i, part) for i, (part, _) in enumerate(grouped))
        firsts = "".join(map(re.escape, {part[:1] for part, _ in grouped}))
        self._first = re.compile(f"[{firsts}]" if firsts else "(?!)")

    def __bool__(self) -> bool:
        return bool(self._groups)

    def next(self, text: str, start: int) -> int:
        """Return the next place where a marker may begin, or -1."""
        found = self._first.search(text, start)
        return -1 if found is None else found.start()

    def match(self, text: str, at: int) -> tuple[Marker, int] | MarkerMatch:
        """Find the first marker that begins at a place; return it and where it ends.

        A marker that may still be completed takes precedence over those after it.
        """
        for i in sorted(self._literals.at(text, at)):
            found = self._groups[i].match(text, at)
            if found is not MarkerMatch.NONE:
                return found
        return MarkerMatch.NONE


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


def _is_after_space(part: str) -> bool:
    """Return whether a part is a text that begins where all space before it ends."""
    return part not in (ANY, KIND, "") and not part[0].isspace()


def _parts_end(parts: Sequence[str], text: str, at: int) -> int | MarkerMatch:
    """Return where parts end that begin at a place, each behind white space."""
    for part in parts:
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


def _skip_space(text: str, at: int, part: str = _LAST) -> int:
    """Return where white space ends, or a part begins that begins with white space itself."""
    rest = text[at : at + MAX_SPACE]
    end = at + len(rest) - len(rest.lstrip())
    found = text.find(part, at, end + len(part))
    return end if found < 0 else found


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


def find(markers: MarkerSet, text: str) -> tuple[int, Marker, int] | tuple[int, None, int]:
    """Find the first marker: where it begins, which it is, where it ends.

    Without a marker, the first number is the length of the text that certainly contains none.
    """
    at = markers.next(text, 0)
    while at >= 0:
        found = markers.match(text, at)
        if found is MarkerMatch.PARTIAL:
            return at, None, at
        if isinstance(found, tuple):
            return at, *found
        at = markers.next(text, at + 1)
    return len(text), None, len(text)
