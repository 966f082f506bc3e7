"""What the engine has said and not yet sent."""

from collections.abc import Callable, Sequence

from protocol.wire.messages import Message

Emit = Callable[[Sequence[Message]], None]
"""Takes messages that leave at once."""


class MessageBuffer(list[Message]):
    """Messages in the order in which they leave."""

    def __init__(self, emit: Emit) -> None:
        super().__init__()
        self._emit = emit

    def send(self) -> None:
        """Let all of them leave."""
        if self:
            messages = list(self)
            self.clear()
            self._emit(messages)
