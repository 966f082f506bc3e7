"""What one task has generated so far, and the decision that it is over. Pure.

The rules and their order are llama-server's (`process_token`, tools/server/server-context.cpp),
except where noted.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.wire.messages import Finish
from protocol.wire.sampling import SamplingParams


class TextStream:
    """Turns the pieces of one generation into text that may be shown.

    An incomplete character is held back, and so is an ending that may become a stop string. `feed`
    returns the certain text, `flush` what was held back at the end.
    """

    __slots__ = ("_decoder", "_held", "_stops", "stopping_word")

    def __init__(self, stops: Sequence[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stops)
        self._held = ""
        self.stopping_word = ""

    def feed(self, piece: bytes) -> str:
        """Take the bytes of one token; return the text that became certain."""
        text = self._decoder.decode(piece)
        if not self._stops:
            return text
        text = self._held + text
        self._held = ""
        start = self._find(text)
        if start is not None:
            return text[:start]
        keep = self._partial(text)
        if keep:
            self._held = text[-keep:]
            return text[:-keep]
        return text

    def flush(self) -> str:
        """Return what was held back for a stop string; half a character is dropped."""
        held, self._held = self._held, ""
        return "" if self.stopping_word else held

    def _find(self, text: str) -> int | None:
        """Find the earliest stop string: whatever came before cannot be part of one."""
        found: int | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (found is None or start < found):
                found, self.stopping_word = start, stop
        return found

    def _partial(self, text: str) -> int:
        """Length of the longest ending that a stop string starts with."""
        longest = max(len(stop) for stop in self._stops) - 1
        for length in range(min(longest, len(text)), 0, -1):
            ending = text[-length:]
            if any(stop.startswith(ending) for stop in self._stops):
                return length
        return 0


@dataclass(slots=True)
class TextGeneration:
    """Text and limits of one generation; `finish` is set once and ends it."""

    params: SamplingParams
    text: TextStream
    n_predicted: int = 0
    has_new_line: bool = False
    truncated: bool = False
    finish: Finish | None = None
    _indents: "IndentCheck | None" = field(default=None, repr=False)

    @classmethod
    def start(cls, params: SamplingParams) -> "TextGeneration":
        """Begin with nothing generated."""
        generation = cls(params, TextStream(params.stop))
        if params.n_indent > 0:
            generation._indents = IndentCheck(params.n_indent)
        return generation

    def accept(self, piece: bytes, *, is_eog: bool, is_full: bool, elapsed_ms: float) -> str:
        """Take one token; return the text to show. `is_full`: the context takes no more after it.

        An end-of-generation token counts as generated, as in llama-server.
        """
        self.n_predicted += 1
        text = self.text.feed(piece)
        if self.text.stopping_word:
            self.finish = Finish.WORD
        elif is_eog:
            self.finish = Finish.EOS
        elif is_full:
            self.finish, self.truncated = Finish.LIMIT, True
        elif 0 <= self.params.n_predict <= self.n_predicted:
            self.finish = Finish.LIMIT
        if self._indents is not None:
            text = self._check_indent(text)
        if "\n" in text:
            self.has_new_line = True
            if 0 < self.params.t_max_predict_ms < elapsed_ms and self.finish is None:
                self.finish = Finish.LIMIT
        if self.finish is not None:
            # llama-server loses this text when it streams; ours is the same streamed or not.
            text += self.text.flush()
        return text

    def end(self, finish: Finish) -> str:
        """End without a further token; return the text that was held back."""
        self.finish = finish
        return self.text.flush()

    def _check_indent(self, text: str) -> str:
        assert self._indents is not None
        if not self._indents.take(text):
            if self.finish is None:
                self.finish = Finish.LIMIT
            self._indents.drop()
        return self._indents.shown(is_all=self.finish is not None)


class IndentCheck:
    """Finds a line that is indented less than required, such as an empty one.

    llama-server checks one line a token, and begins a token after that of the first line break.
    What will be cut is not shown before.
    """

    def __init__(self, n_indent: int) -> None:
        self._n_indent = n_indent
        self._has_broken = False
        """A token before this one had a line break."""
        self._is_line = False
        """`_rest` begins with a line that must be indented."""
        self._rest = ""
        """The text from the line on that is checked next, but what decides nothing."""
        self._unshown = ""

    def take(self, text: str) -> bool:
        """Take the text of a token; false if it ends here."""
        self._rest += text
        self._unshown += text
        has_broken, self._has_broken = self._has_broken, self._has_broken or "\n" in text
        if has_broken:
            if self._is_line and self._is_short(self._rest):
                return False
            _, found, rest = self._rest.partition("\n")
            if found:
                self._is_line, self._rest = True, rest
        self._forget()
        return True

    def _forget(self) -> None:
        """Drop what is left of a line that cannot be too short: a line may have any length."""
        if self._is_line:
            n_spaces = len(self._rest) - len(self._rest.lstrip(" \t"))
            if n_spaces < self._n_indent:
                return
            self._is_line = False
        at = self._rest.find("\n")
        self._rest = self._rest[at:] if at >= 0 else ""

    def drop(self) -> None:
        """Forget the line that is too short, and what follows it."""
        n_cut = len(self._rest.lstrip(" \t"))
        self._unshown = self._unshown[: max(0, len(self._unshown) - n_cut)]

    def shown(self, *, is_all: bool) -> str:
        """Return what may be shown now: nothing that may yet be cut, unless that is all."""
        n_held = 0 if is_all else self._n_short()
        n = max(0, len(self._unshown) - n_held)
        text, self._unshown = self._unshown[:n], self._unshown[n:]
        return text

    def _n_short(self) -> int:
        """Return how much text stands from the first line on that is too short."""
        lines, n_left = self._rest.split("\n"), len(self._rest)
        for i, line in enumerate(lines):
            n_line = len(line) + (i + 1 < len(lines))
            if (i or self._is_line) and self._is_short(line + "\n" * (i + 1 < len(lines))):
                return n_left - (len(line) - len(line.lstrip(" \t")))
            n_left -= n_line
        return 0

    def _is_short(self, line: str) -> bool:
        body = line.lstrip(" \t")
        return bool(body) and len(line) - len(body) < self._n_indent
