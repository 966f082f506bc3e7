"""What one task has generated so far, and the decision that it is over. Pure.

The rules and their order are llama-server's (`process_token`, tools/server/server-context.cpp),
except where noted.
"""

from dataclasses import dataclass, field

from protocol.messages import Finish
from protocol.sampling import SamplingParams
from worker.output.text import TextStream


@dataclass(slots=True)
class Generation:
    """Text and limits of one generation; `finish` is set once and ends it."""

    params: SamplingParams
    text: TextStream
    n_predicted: int = 0
    has_new_line: bool = False
    truncated: bool = False
    finish: Finish | None = None
    _line: str = field(default="", repr=False)
    """The line that is being written, where indentation is limited."""

    @classmethod
    def start(cls, params: SamplingParams) -> "Generation":
        """Begin with nothing generated."""
        return cls(params, TextStream(params.stop))

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
        if "\n" in text or self.params.n_indent > 0:
            text = self._check_lines(text, elapsed_ms)
        if self.finish is not None:
            # llama-server loses this text when it streams; ours is the same streamed or not.
            text += self.text.flush()
        return text

    def end(self, finish: Finish) -> str:
        """End without a further token; return the text that was held back."""
        self.finish = finish
        return self.text.flush()

    def _check_lines(self, text: str, elapsed_ms: float) -> str:
        """Apply the limits that look at lines: indentation and, at a newline, time."""
        if self.has_new_line and self.params.n_indent > 0:
            text = self._check_indent(text)
        newline = text.rfind("\n")
        if newline >= 0:
            self._line = text[newline + 1 :]
            self.has_new_line = True
            if 0 < self.params.t_max_predict_ms < elapsed_ms and self.finish is None:
                self.finish = Finish.LIMIT
        else:
            self._line += text
        return text

    def _check_indent(self, text: str) -> str:
        """End at the first character of a line that is indented less than `n_indent`."""
        n_before = len(self._line)
        lines = (self._line + text).split("\n")
        offset = 0
        for line in lines:
            body = line.lstrip(" \t")
            n_indent = len(line) - len(body)
            if body and n_indent < self.params.n_indent:
                if self.finish is None:
                    self.finish = Finish.LIMIT
                return text[: max(0, offset + n_indent - n_before)]
            offset += len(line) + 1
        return text
