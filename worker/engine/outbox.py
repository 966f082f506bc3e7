"""What the engine has said and not yet sent."""

import time
from collections.abc import Callable, Sequence

from protocol.messages import Delta, Message

Emit = Callable[[Sequence[Message], float], None]
"""Takes messages, and when they may leave (monotonic); 0 is at once, with all before them."""


class Outbox(list[Message]):
    """Messages in the order in which they leave.

    To tell a token takes longer than to choose one: at 6 ms a token on 2 cores, the link, the
    gateway and their way between take half a millisecond from the step that computes meanwhile, and
    for two tokens hardly more than for one. So the tokens of quick steps leave together.
    """

    def __init__(self, emit: Emit, interval_s: float) -> None:
        """Tokens may leave together with those that come within `interval_s`."""
        super().__init__()
        self._emit = emit
        self._interval_s = interval_s
        self._sent_s = 0.0

    @property
    def can_wait(self) -> bool:
        """All are further tokens of answers, and the last ones left a short while ago."""
        if time.monotonic() - self._sent_s >= self._interval_s:
            return False
        return all(type(one) is Delta and one.n_predicted > 1 for one in self)

    def send(self, due_s: float) -> None:
        """Let all of them leave at `due_s`; at once, if there is more than further text."""
        if not self:
            return
        messages = list(self)
        self.clear()
        self._sent_s = time.monotonic()
        if due_s and not all(type(message) is Delta for message in messages):
            due_s = 0.0
        self._emit(messages, due_s)
