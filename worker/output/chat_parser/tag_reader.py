"""Base class of the readers of arguments in tags."""

from worker.output.chat_parser.sink import Sink


class TagReader:
    """Reads the arguments of one call, which the model writes in tags, and emits them as JSON."""

    is_writing = False
    """Always False: the JSON is written here, so it is valid."""

    def __init__(self, name: str, sink: Sink) -> None:
        self._name = name
        self._sink = sink
        self._text = ""
        """Text that is not read yet."""
        self.is_done = False
        self.has_committed = False
        """Whether the call was emitted."""

    @property
    def is_open(self) -> bool:
        """Whether the call was emitted."""
        return self.has_committed

    @property
    def unread(self) -> str:
        """Text to give back; empty, because the parser keeps all text until the call is open."""
        return ""

    def piece(self, text: str, at: int) -> str:
        """Return what `push` takes next: one character."""
        return text[at]

    def _commit(self) -> None:
        """Emit the call, if it was not."""
        if not self.has_committed:
            self._sink.open_call(self._name)
            self.has_committed = True


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of a text that begins a mark."""
    longest = min(len(text), len(mark) - 1)
    return next(n for n in range(longest, -1, -1) if text.endswith(mark[:n]))
