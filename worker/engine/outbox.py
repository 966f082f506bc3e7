"""What the engine has said and not yet sent."""

from collections.abc import Callable, Sequence

from protocol.wire.messages import Delta, Message

Emit = Callable[[Sequence[Message], float], None]
"""Takes messages, and when they may leave (monotonic); 0 is at once, with all before them."""


class MessageBuffer(list[Message]):
    """Messages in the order in which they leave."""

    def __init__(self, emit: Emit) -> None:
        super().__init__()
        self._emit = emit

    def send(self, due_s: float) -> None:
        """Let all of them leave at `due_s`; at once, if there is more than further text."""
        if not self:
            return
        messages = list(self)
        self.clear()
        if due_s and not all(type(message) is Delta for message in messages):
            due_s = 0.0
        self._emit(messages, due_s)
