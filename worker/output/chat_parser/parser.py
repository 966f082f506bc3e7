"""Parses the text of one chat answer while it is generated.

The result does not depend on how the text is cut: text that may become a marker is held back, and
becomes content if it does not. An answer that ends within the end mark of its reasoning loses that
half mark, as in llama-server; no other text is lost. Markers at the end of the generation prompt
(opened reasoning, `>>>`) are fed first, as llama.cpp does. White space is kept where llama-server
keeps it; which white space belongs to a mark is in `worker.output.formats.reasoning_marks`.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar

from worker.output.chat_parser.answer_markers import NO_MARKERS, answer_markers
from worker.output.chat_parser.call_reader import CallReader
from worker.output.chat_parser.json_answer import JsonAnswer
from worker.output.chat_parser.json_walk import MalformedJson
from worker.output.chat_parser.markers import (
    MAX_SPACE,
    Marker,
    MarkerKind,
    MarkerMatch,
    MarkerSet,
    find,
)
from worker.output.chat_parser.nested import NestedReader, ValueTypes
from worker.output.chat_parser.notated import NotatedReader
from worker.output.chat_parser.reasoning_reader import ReasoningReader, Spaces
from worker.output.chat_parser.sink import ParsedPart, Sink
from worker.output.chat_parser.tagged import TaggedReader, Types
from worker.output.formats.reasoning_marks import ReasoningMarks
from worker.output.formats.tool_format import ToolFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedParts:
    """Parts that an answer may have, from its prompt."""

    tools: ToolFormat | None = None
    """None if calls are not parsed."""
    names: Set[str] = frozenset()
    types: Mapping[str, Types] = field(default_factory=dict)
    """Tool -> types of its arguments; needed only for arguments in tags."""
    parts: Mapping[str, ValueTypes] = field(default_factory=dict)
    """Tool -> parts of its arguments; needed only for nested tags."""
    reasoning_marks: ReasoningMarks | None = None
    """None if the model does not write reasoning."""
    skips_space: bool = False
    """Whether leading white space of the answer is dropped."""
    dropped: tuple[str, ...] = ()
    """Marks that are removed from the answer."""
    is_json: bool = False
    """Whether the answer is JSON; a code fence around it is removed."""
    is_plain: bool = False
    """Whether reasoning stays in the answer, with its marks."""
    answer_prefix: str = ""
    """Beginning of the answer in the prompt: opened reasoning, `>>>`."""
    is_continued: bool = False
    """Whether the client wrote that beginning."""
    repeats_prefix: bool = False
    """Whether a stream repeats it."""


class _ParserState(Enum):
    START = auto()
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()
    BROKEN = auto()
    """Arguments that are no longer valid JSON; as the call was emitted, they are passed on."""
    BETWEEN = auto()
    """After a call: closers, another call, or content again."""


class ChatParser:
    """One answer; `feed` what is generated, `finish` at its end."""

    def __init__(self, expected: ExpectedParts, *, is_whole: bool = False) -> None:
        """`is_whole`: the answer is not streamed, and contains what the client began.

        If it ends before a part was recognized (white space, half of a mark), all of it is content.
        """
        self._expected = expected
        tools = expected.tools
        answer = JsonAnswer() if expected.is_json else None
        self._sink = Sink(tools.id_length if tools else 0, answer)
        self._state = _ParserState.START
        self._text = ""
        """Text that is not classified yet."""
        self._raw: list[str] | None = [] if is_whole else None
        """The text of an answer that is not streamed, until a part was recognized."""
        self._held: list[str] = []
        """Text of a possible call."""
        reasoning_marks = expected.reasoning_marks
        self._spaces = Spaces(None if expected.skips_space else "")
        """Drops the white space that belongs to marks."""
        self._reasoning: ReasoningReader | None = None
        self._reader: CallReader | TaggedReader | NestedReader | NotatedReader | None = None
        if reasoning_marks and reasoning_marks.close and not expected.is_plain:
            self._spaces = Spaces(None if reasoning_marks.skips_lead else "")
        else:
            reasoning_marks = None
        names = frozenset(expected.names)
        self._markers = answer_markers(tools, names, reasoning_marks, expected.dropped)
        self._first = self._markers.first
        """What begins reasoning, until it is over."""
        if expected.answer_prefix:
            self._read_prefix(expected)
        self._n_chars = len(self._text)
        """Length of all text so far; that of `_text` if nothing of it is classified yet."""

    def _read_prefix(self, expected: ExpectedParts) -> None:
        """Read the part of the answer that the prompt contains."""
        self._text = expected.answer_prefix
        self._advance()
        if expected.is_continued and not (self._raw is not None or expected.repeats_prefix):
            self._sink.take()

    def feed(self, text: str) -> ParsedPart:
        """Take text; return the parts that are certain now."""
        self._text += text
        self._n_chars += len(text)
        self._advance()
        parsed = self._sink.take()
        if self._raw is not None:
            self._raw.append(text)
            if parsed:
                self._raw = None
        return parsed

    def finish(self) -> ParsedPart:
        """Return the text that was held back."""
        if self._reasoning is not None:
            pass  # all that is held back here is white space, or a part of the end mark
        elif self._state is _ParserState.BROKEN:
            self._sink.arguments(self._text)
        elif self._state is _ParserState.BETWEEN:
            pass  # all that is held back here is space, or a part of the next call's marker
        elif self._state is _ParserState.CALL:
            # Text after a call is not content: brackets, or half of the next call.
            assert self._reader is not None
            if not (self._sink.has_called or self._reader.has_committed):
                self._put_back("".join(self._held))
        else:
            self._sink.content(self._unread())
        self._text = ""
        self._held.clear()
        return self._sink.take() or ParsedPart("".join(self._raw or ()))

    def _unread(self) -> str:
        """Return the text that was held back, without what the prompt began of it."""
        is_all = len(self._text) == self._n_chars and not self._expected.is_continued
        return self._text.removeprefix(self._expected.answer_prefix) if is_all else self._text

    def _advance(self) -> None:
        while self._text and self._STEPS[self._state](self):
            pass

    # ---- one step for each state: consumes text, returns whether another step can follow --------

    def _start(self) -> bool:
        """Look for reasoning, or for a bare call, at the very beginning."""
        self._text = self._spaces.eat(self._text)
        if not self._text:
            return False
        found = self._match_at(0, self._first)
        if found is None:
            return False
        if found[0] is not None:
            self._enter(found[0], found[1])
            if found[0].kind is MarkerKind.CLOSER:
                self._leave_reasoning()
            return True
        found = self._match_bare()
        if found is None:
            return False
        if found[0] is not None:
            self._enter(found[0], found[1])
            return True
        if self._first:
            self._leave_reasoning()
        self._state = _ParserState.CONTENT
        return True

    def _match_bare(self) -> tuple[Marker | None, int] | None:
        at = self._space() if self._markers.bare else 0
        return None if at is None else self._match_at(at, self._markers.bare)

    def _leave_reasoning(self) -> None:
        """Reasoning has ended, or there was none: the answer follows."""
        assert self._expected.reasoning_marks is not None
        has_reasoning = self._reasoning is not None
        self._reasoning, self._first = None, NO_MARKERS
        space = self._expected.reasoning_marks.after_close
        if has_reasoning or space is None:
            self._spaces = Spaces(space)

    def _read_reasoning(self) -> bool:
        """Emit reasoning."""
        reader = self._reasoning
        assert reader is not None
        self._sink.reasoning(reader.push(self._text))
        self._text = reader.rest
        if reader.is_over:
            self._leave_reasoning()
            self._state = _ParserState.START
        return reader.is_over

    def _read_content(self) -> bool:
        """Emit content up to the first marker."""
        self._text = self._spaces.eat(self._text)
        at, marker, end = find(self._markers.in_content, self._text)
        self._sink.content(self._text[:at])
        self._text = self._text[at:]
        if marker is not None:
            self._enter(marker, end - at)
        return marker is not None

    def _read_call(self) -> bool:
        assert self._reader is not None
        reader = self._reader
        at, is_open = 0, reader.is_open
        while at < len(self._text):
            piece = reader.piece(self._text, at)
            was_open, was_writing = is_open, is_open and reader.is_writing
            try:
                reader.push(piece)
            except MalformedJson:
                self._text = self._text[at:]
                self._give_up(was_open=was_open, was_writing=was_writing)
                return True
            at += len(piece)
            is_open = reader.is_open
            if was_open or is_open:
                self._held.clear()
            else:
                self._held.append(piece)
            if reader.is_done:
                self._text = self._text[at:]
                self._held.clear()
                self._state = _ParserState.BETWEEN
                return True
        self._text = ""
        return False

    def _give_up(self, *, was_open: bool, was_writing: bool) -> None:
        """Handle text that is not a call, or a broken call."""
        if was_writing:
            self._state = _ParserState.BROKEN
            return
        assert self._reader is not None
        self._put_back("".join(self._held) + (self._reader.unread if was_open else ""))
        self._state = _ParserState.CONTENT

    def _put_back(self, text: str) -> None:
        """Put back text that was held as a possible call."""
        self._sink.content(text)
        self._held.clear()

    def _read_broken(self) -> bool:
        at, marker, _ = find(self._markers.in_broken, self._text)
        self._sink.arguments(self._text[:at])
        self._text = self._text[at:]
        if marker is None:
            return False
        self._state = _ParserState.BETWEEN
        return True

    def _read_between(self) -> bool:
        at = self._space()
        if at is None:
            return False
        found = self._match_at(at, self._markers.in_between)
        if found is None:
            return False
        marker, end = found
        if marker is None:
            self._state = _ParserState.CONTENT
        elif marker.kind in (MarkerKind.CLOSER, MarkerKind.DROPPED):
            self._text = self._text[end:]
        else:
            self._enter(marker, end)
        return True

    _STEPS: ClassVar[Mapping[_ParserState, Callable[["ChatParser"], bool]]] = {
        _ParserState.START: _start,
        _ParserState.REASONING: _read_reasoning,
        _ParserState.CONTENT: _read_content,
        _ParserState.CALL: _read_call,
        _ParserState.BROKEN: _read_broken,
        _ParserState.BETWEEN: _read_between,
    }

    # -------------------------------------------------------------------------------------------

    def _space(self) -> int | None:
        """Length of the space that the text begins with; None: it may go on."""
        at = len(self._text) - len(self._text.lstrip())
        if at > MAX_SPACE:
            return 0
        return None if at == len(self._text) else at

    def _match_at(self, at: int, markers: MarkerSet) -> tuple[Marker | None, int] | None:
        """Return the marker at a place and its end, (None, 0) for none, None for too early."""
        found = markers.match(self._text, at)
        if isinstance(found, tuple):
            return found
        return None if found is MarkerMatch.PARTIAL else (None, 0)

    def _enter(self, marker: Marker, end: int) -> None:
        """Change to the state that a marker begins; the space before the marker is dropped."""
        if marker.kind in (MarkerKind.CALL, MarkerKind.BARE):
            self._open_call(marker, end)
            return
        self._text = self._text[end:]
        if marker.kind is MarkerKind.REASONING:
            assert self._expected.reasoning_marks is not None
            after_open = self._expected.reasoning_marks.after_open
            self._reasoning = ReasoningReader(self._markers.reasoning_end, after_open)
            self._state = _ParserState.REASONING
        else:
            self._state = _ParserState.CONTENT

    def _open_call(self, marker: Marker, end: int) -> None:
        tools = self._expected.tools
        assert tools is not None
        is_bare = marker.kind is MarkerKind.BARE
        cut = end - 1 if is_bare else end  # the brace belongs to the call
        self._held, self._text = [self._text[:cut]], self._text[cut:]
        names, types = self._expected.names, self._expected.types
        if tools.notation and marker.name:
            self._reader = NotatedReader(tools.notation, marker.name, self._sink)
        elif tools.nested and marker.name:
            whole = self._expected.parts.get(marker.name, ValueTypes(frozenset()))
            self._reader = NestedReader(tools.nested, marker.name, whole, self._sink)
        elif tools.tagged and marker.name:
            mine = types.get(marker.name, {})
            self._reader = TaggedReader(tools.tagged, marker.name, mine, self._sink)
        else:
            self._reader = CallReader(tools, names, self._sink, name=marker.name, is_strict=is_bare)
        self._state = _ParserState.CALL
