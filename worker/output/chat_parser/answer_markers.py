"""Markers to look for in one kind of answer."""

from collections.abc import Set
from functools import cached_property, lru_cache

from worker.output.chat_parser.markers import (
    Marker,
    MarkerKind,
    MarkerSet,
    later_openers,
    openers,
)
from worker.output.formats.reasoning_marks import ReasoningMarks
from worker.output.formats.tool_format import ToolFormat

NO_MARKERS = MarkerSet(())
_MAX_KEPT_CHARS = 8192
"""Maximum characters of all names whose markers are kept: 128 names of OpenAI's 64 characters.
Clients choose the names, and 32 sets of markers stay in memory."""


class AnswerMarkers:
    """What each part of an answer may end with; immutable, so that parsers can share it."""

    def __init__(
        self,
        tools: ToolFormat | None,
        names: Set[str],
        reasoning: ReasoningMarks | None,
        dropped: tuple[str, ...],
    ) -> None:
        """`reasoning` is None if none is expected."""
        self._openers = openers(tools, names) if tools else []
        self._next_calls = later_openers(tools, names) if tools else []
        self._closers = _markers(MarkerKind.CLOSER, *tools.closers, tools.end) if tools else []
        self._bare = _markers(MarkerKind.BARE, "{") if tools and tools.is_bare else []
        self._later = self._bare if tools and tools.has_words_first else []
        self._dropped = _markers(MarkerKind.DROPPED, *dropped)
        self._again: list[Marker] = []
        self.bare = MarkerSet(self._bare)
        """A call without a mark."""
        self.first = self.reasoning_end = NO_MARKERS
        """What begins reasoning, or shows that there is none; and what ends it."""
        if reasoning is not None:
            self._expect_reasoning(reasoning)

    def _expect_reasoning(self, marks: ReasoningMarks) -> None:
        texts = (marks.open, *marks.loose_opens)
        first = [Marker(MarkerKind.REASONING, (text,)) for text in texts]
        close = _markers(MarkerKind.CLOSER, marks.close)
        if marks.is_anywhere:
            self._again = first
            self._dropped += _markers(MarkerKind.DROPPED, marks.close)
        self.first = MarkerSet([*first, *close] if marks.may_only_end else first)
        self.reasoning_end = MarkerSet([*close, *_markers(MarkerKind.CALL, *marks.ends)])

    @cached_property
    def in_content(self) -> MarkerSet:
        """What ends content, or is dropped from it."""
        return MarkerSet([*self._openers, *self._again, *self._dropped, *self._later])

    @cached_property
    def in_broken(self) -> MarkerSet:
        """What ends arguments that are no valid JSON."""
        return MarkerSet([*self._closers, *self._openers])

    @cached_property
    def in_between(self) -> MarkerSet:
        """What may come after a call."""
        calls = [*self._openers, *self._next_calls, *self._closers]
        return MarkerSet([*calls, *self._again, *self._dropped, *self._bare])


def answer_markers(
    tools: ToolFormat | None,
    names: frozenset[str],
    reasoning: ReasoningMarks | None,
    dropped: tuple[str, ...],
) -> AnswerMarkers:
    """Make the markers once for all answers to the same tools: there may be some for each of 128.

    The next request of a conversation has the same tools. Long names are not kept.
    """
    make = _kept if sum(map(len, names)) <= _MAX_KEPT_CHARS else AnswerMarkers
    return make(tools, names, reasoning, dropped)


_kept = lru_cache(maxsize=32)(AnswerMarkers)


def _markers(kind: MarkerKind, *texts: str) -> list[Marker]:
    return [Marker(kind, (text,)) for text in texts if text]
