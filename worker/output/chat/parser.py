"""Takes the text of one chat answer apart while it is generated.

The result does not depend on how the text is cut: whatever may still become a marker is held back,
what turns out to be none is content, and at the end nothing is missing. The generation prompt's own
markers (an opened thought, `>>>`) are told first, as llama.cpp does.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import Enum, auto

from worker.output.chat.calls import CallReader
from worker.output.chat.formats import Thoughts
from worker.output.chat.json_walk import Malformed
from worker.output.chat.markers import Kind, Marker, Match, find, match_marker, openers
from worker.output.chat.sink import Parsed, Sink
from worker.output.chat.tagged import TaggedReader, Types
from worker.output.chat.tool_format import ToolFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What an answer may hold, as its prompt has it."""

    tools: ToolFormat | None = None
    """None: calls are not looked for."""
    names: Set[str] = frozenset()
    types: Mapping[str, Types] = field(default_factory=dict)
    """Tool -> the types of its arguments; only needed where these stand in tags."""
    thoughts: Thoughts | None = None
    """None: thoughts stay where they are."""
    begun: str = ""
    """What of the answer the prompt already holds: an opened thought, `>>>`."""
    is_continued: bool = False
    """The client wrote what is begun."""


_MAX_SPACE = 64
"""More space than this is not held back for what may follow it: models can write it for ever."""


class _State(Enum):
    START = auto()
    THOUGHTS = auto()
    CONTENT = auto()
    CALL = auto()
    BROKEN = auto()
    """Arguments that stopped being JSON: they were promised, so they go on to the closer."""
    BETWEEN = auto()
    """After a call: closers, another call, or content again."""


class ChatParser:
    """One answer; `feed` what is generated, `finish` at its end."""

    def __init__(self, expected: Expected, *, repeats: bool = False) -> None:
        """`repeats`: what the client began is part of the answer, as llama-server has it."""
        self._expected = expected
        tools = expected.tools
        self._sink = Sink(tools.id_length if tools else 0)
        self._state = _State.START
        self._text = ""
        """Not decided yet."""
        self._held: list[str] = []
        """A call that may turn out to be none."""
        self._skips_space = False
        self._reader: CallReader | TaggedReader | None = None
        self._openers = openers(tools, expected.names) if tools else []
        self._dropped = [Marker(Kind.DROPPED, (text,)) for text in tools.dropped] if tools else []
        ends = [*tools.closers, tools.end] if tools else []
        self._closers = [Marker(Kind.CLOSER, (text,)) for text in ends if text]
        self._bare = [Marker(Kind.BARE, ("{",))] if tools and tools.is_bare else []
        self._in_thoughts = False
        """The call under way began inside a thought that had not ended."""
        self._ends: list[Marker] = []
        self._first: list[Marker] = []
        self._again: list[Marker] = []
        if expected.thoughts:
            begin = [Marker(Kind.THOUGHTS, (expected.thoughts.open,))]
            close = Marker(Kind.CLOSER, (expected.thoughts.close,))
            self._ends = [close, *(self._openers if tools and tools.ends_thoughts else [])]
            self._first, self._again = begin, begin if expected.thoughts.is_anywhere else []
        if expected.begun:
            self._text = expected.begun
            self._advance()
            if not (repeats and expected.is_continued):
                self._sink.take()

    def feed(self, text: str) -> Parsed:
        """Take text; return what it is now known to be."""
        self._text += text
        self._advance()
        return self._sink.take()

    def finish(self) -> Parsed:
        """Return what was held back in vain."""
        if self._state is _State.THOUGHTS:
            self._sink.reasoning(self._text.rstrip())
        elif self._state is _State.BROKEN:
            self._sink.arguments(self._text)
        elif self._state is _State.BETWEEN:
            pass  # all that is held back here is space, or a part of the next call's marker
        elif self._skips_space:
            self._sink.content(self._text.lstrip())
        elif self._state is _State.CALL:
            # What follows a call is no words: brackets, or half of the next call.
            assert self._reader is not None
            if not (self._sink.has_called or self._reader.has_committed):
                self._put_back("".join(self._held))
        else:
            self._sink.content(self._text)
        self._text = ""
        self._held.clear()
        return self._sink.take()

    def _advance(self) -> None:
        steps = {
            _State.START: self._start,
            _State.THOUGHTS: self._think,
            _State.CONTENT: self._read_content,
            _State.CALL: self._read_call,
            _State.BROKEN: self._read_broken,
            _State.BETWEEN: self._read_between,
        }
        while self._text and steps[self._state]():
            pass

    def _skip_space(self) -> None:
        """Drop the space after the mark of a thought's beginning or end."""
        if self._skips_space:
            self._text = self._text.lstrip()
            self._skips_space = not self._text

    # ---- one state each: consume, and say whether to go on --------------------------------------

    def _start(self) -> bool:
        """Look for thoughts, or for a bare call, at the very beginning."""
        self._skip_space()
        at = self._space()
        if at is None:
            return False
        found = self._match_at(at, [*self._first, *self._dropped, *self._openers, *self._bare])
        if found is None:
            return False
        marker, end = found
        if marker is None:
            self._state = _State.CONTENT
        else:
            self._enter(marker, at, end)
        return True

    def _think(self) -> bool:
        """Pass thoughts on, without the space around them."""
        assert self._expected.thoughts is not None
        self._skip_space()
        at, marker, end = find(self._ends, self._text, 0)
        sure = self._before_space(at)
        self._sink.reasoning(self._text[:sure])
        self._text = self._text[sure:]
        if marker is None:
            return False
        self._in_thoughts = marker.kind is Kind.CALL
        if self._in_thoughts:
            self._open_call(marker, at - sure, end - sure)
        else:
            self._text = self._text[end - sure :]
            self._state, self._skips_space = _State.START, True
        return True

    def _read_content(self) -> bool:
        """Pass content on up to the first marker; space before a call is not content."""
        markers = [*self._openers, *self._again, *self._dropped]
        if not markers:
            self._sink.content(self._text)
            self._text = ""
            return False
        at, marker, end = find(markers, self._text, 0)
        sure = self._before_space(at)
        self._sink.content(self._text[:sure])
        if marker is None:
            self._text = self._text[sure:]
            return False
        self._text, at, end = self._text[sure:], at - sure, end - sure
        self._enter(marker, at, end)
        return True

    def _read_call(self) -> bool:
        assert self._reader is not None
        reader = self._reader
        for i, char in enumerate(self._text):
            was_open, was_writing = reader.is_open, reader.is_writing
            try:
                reader.push(char)
            except Malformed:
                self._text = self._text[i:]
                self._give_up(was_open=was_open, was_writing=was_writing)
                return True
            if was_open or reader.is_open:
                self._held.clear()
            else:
                self._held.append(char)
            if reader.is_done:
                self._text = self._text[i + 1 :]
                self._held.clear()
                self._state = _State.BETWEEN
                return True
        self._text = ""
        return False

    def _give_up(self, *, was_open: bool, was_writing: bool) -> None:
        """What was read is no call, or a broken one."""
        if was_writing:
            self._state = _State.BROKEN
            return
        assert self._reader is not None
        self._put_back("".join(self._held) + (self._reader.unread if was_open else ""))
        is_thought = self._in_thoughts and not was_open
        self._state = _State.THOUGHTS if is_thought else _State.CONTENT
        self._skips_space = False

    def _put_back(self, text: str) -> None:
        """What was held for a call is none."""
        is_thought = self._in_thoughts and not self._sink.has_called
        (self._sink.reasoning if is_thought else self._sink.content)(text)
        self._held.clear()

    def _read_broken(self) -> bool:
        at, marker, _ = find([*self._closers, *self._openers], self._text, 0)
        self._sink.arguments(self._text[:at])
        self._text = self._text[at:]
        if marker is None:
            return False
        self._state = _State.BETWEEN
        return True

    def _read_between(self) -> bool:
        at = self._space()
        if at is None:
            return False
        markers = [*self._openers, *self._closers, *self._again, *self._dropped, *self._bare]
        found = self._match_at(at, markers)
        if found is None:
            return False
        marker, end = found
        if marker is None:
            self._state = _State.CONTENT
        elif marker.kind in (Kind.CLOSER, Kind.DROPPED):
            self._text = self._text[end:]
        else:
            self._enter(marker, at, end)
        return True

    # -------------------------------------------------------------------------------------------

    def _space(self) -> int | None:
        """Length of the space that the text begins with; None: it may go on."""
        at = len(self._text) - len(self._text.lstrip())
        if at > _MAX_SPACE:
            return 0
        return None if at == len(self._text) else at

    def _before_space(self, end: int) -> int:
        """Return where the space before `end` begins."""
        return max(len(self._text[:end].rstrip()), end - _MAX_SPACE)

    def _match_at(self, at: int, markers: list[Marker]) -> tuple[Marker | None, int] | None:
        """Return the marker at a place and its end, (None, 0) for none, None for too early."""
        for marker in markers:
            end = match_marker(marker, self._text, at)
            if isinstance(end, int):
                return marker, end
            if end is Match.PARTIAL:
                return None
        return None, 0

    def _enter(self, marker: Marker, at: int, end: int) -> None:
        """Go where a marker leads; `at` counts the space before it, which is dropped with it."""
        match marker.kind:
            case Kind.THOUGHTS:
                self._state, self._skips_space = _State.THOUGHTS, True
            case Kind.CALL | Kind.BARE:
                self._open_call(marker, at, end)
                return
            case _:
                self._sink.content(self._text[:at])
                self._state = _State.CONTENT
        self._text = self._text[end:]

    def _open_call(self, marker: Marker, at: int, end: int) -> None:
        tools = self._expected.tools
        assert tools is not None
        is_bare = marker.kind is Kind.BARE
        cut = at if is_bare else end  # the brace belongs to the call
        self._held, self._text = [self._text[:cut]], self._text[cut:]
        names, types = self._expected.names, self._expected.types
        if tools.tagged and marker.name:
            mine = types.get(marker.name, {})
            self._reader = TaggedReader(tools.tagged, marker.name, mine, self._sink)
        else:
            self._reader = CallReader(tools, names, self._sink, name=marker.name, is_strict=is_bare)
        self._state = _State.CALL
