"""The CPU time in which tasks may search for the tokens that their grammars allow.

A task has some time of its own, which its tokens give back. For a longer search there is time that
all tasks of a worker share, so that a step with n such tasks takes not n times as long as with one.
"""

import time

OWN_S = 0.05
"""Time of a task's own. Ordinary grammars take 1 ms a token, and 20 ms for their longest search."""
A_TOKEN_S = 0.02
"""What each token gives back of it: the mean by which a task may always delay steps."""
VOCABULARY = 50_000
"""Tokens of a vocabulary to which both belong. With more there is more to search, and more time."""
SHARED_S = 0.2
"""Time of all tasks for what exceeds their own. On a busy machine other streams stop for two or
three times as long."""
_REGAINED = 0.25
"""What each second gives back of it, in seconds."""


class SharedSearchTime:
    """The time that all tasks share. Threads that use it at once may miscount a little."""

    def __init__(self) -> None:
        self._left_s = SHARED_S
        self._at_s = time.monotonic()

    def left_s(self) -> float:
        """Return what is left now."""
        now = time.monotonic()
        self._left_s = min(SHARED_S, self._left_s + _REGAINED * (now - self._at_s))
        self._at_s = now
        return self._left_s

    def spend(self, used_s: float) -> None:
        """Take time away; a search may end a little after its time is over."""
        self._left_s = max(0.0, self._left_s - used_s)


class SearchTime:
    """The time of one task."""

    def __init__(self, shared: SharedSearchTime, n_vocab: int) -> None:
        self._shared = shared
        self._scale = max(1.0, n_vocab / VOCABULARY)
        self._own_s = OWN_S * self._scale

    def left_s(self) -> float:
        """Return how long the task may search now."""
        return self._own_s + self._shared.left_s()

    def spend(self, used_s: float) -> None:
        """Take time away, first the task's own."""
        own_s = min(used_s, self._own_s)
        self._own_s -= own_s
        self._shared.spend(used_s - own_s)

    def advance(self) -> None:
        """Give back what a token gives back."""
        self._own_s = min(OWN_S * self._scale, self._own_s + A_TOKEN_S * self._scale)
