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
        self._until = ""
        """Character with which the next piece ends; empty: each character is a piece."""
        self.is_done = False
        self.has_committed = self.is_open = False
        """Whether the call was emitted."""

    @property
    def unread(self) -> str:
        """Text to give back; empty, because the parser keeps all text until the call is open."""
        return ""

    def piece(self, text: str, at: int) -> str:
        """Return what `push` takes next: a part of a value, or one character."""
        return text[at : text.find(self._until, at) + 1 or None]

    def _commit(self) -> None:
        """Emit the call, if it was not."""
        if not self.has_committed:
            self._sink.open_call(self._name)
            self.has_committed = self.is_open = True


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of a text that begins a mark."""
    at = text.find(mark[0], max(0, len(text) - len(mark) + 1))
    while at >= 0 and not mark.startswith(text[at:]):
        at = text.find(mark[0], at + 1)
    return len(text) - at if at >= 0 else 0
