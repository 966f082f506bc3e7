"""An answer as the model wrote it, beside its parts: what `__verbose` shows of a chat."""

from worker.output.chat_parser.sink import ParsedPart
from worker.output.continued import AnswerParser


class RecordedAnswer:
    """A parser that keeps what it has read."""

    def __init__(self, parser: AnswerParser, text: str = "") -> None:
        """`text` is what another worker has generated of it."""
        self._parser = parser
        self.text = text

    def feed(self, text: str) -> ParsedPart:
        """Take text; return the parts that are certain now."""
        self.text += text
        return self._parser.feed(text)

    def finish(self) -> ParsedPart:
        """Return the text that was held back."""
        return self._parser.finish()
