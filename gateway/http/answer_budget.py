"""Bounds the memory of answers that are sent in one piece, and wait for their end.

An answer of 2,000 tokens with 1,000 alternatives each takes a gigabyte until it is written; a
worker that was taken over may send text without end.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from protocol.errors import ErrorCode, InvalidRequest, TaskError

_MIB = 1024 * 1024
_MOST, _MOST_OF_ONE = 1024 * _MIB, 256 * _MIB
"""Of all answers together, and of one request's; while one is written it takes four times that."""


class AnswerBudget:
    """Counts what all answers hold that are gathered."""

    def __init__(self) -> None:
        self.n_bytes = 0

    def __repr__(self) -> str:
        return f"<AnswerBudget {self.n_bytes}>"

    @contextmanager
    def held(self) -> Iterator["HeldAnswer"]:
        """Return an empty share for the answers of one request; it is given back at the end."""
        share = HeldAnswer(self)
        try:
            yield share
        finally:
            self.n_bytes -= share.n_bytes


class HeldAnswer:
    """Bytes of the budget that one request holds."""

    __slots__ = ("_budget", "n_bytes")

    def __init__(self, budget: AnswerBudget) -> None:
        self._budget = budget
        self.n_bytes = 0

    def take(self, n: int) -> None:
        """Hold more bytes; raises `TaskError` if they are too many."""
        if self.n_bytes + n > _MOST_OF_ONE:
            raise InvalidRequest(
                f"the answer takes more than {_MOST_OF_ONE // _MIB} MiB of memory: stream it, or "
                "ask for fewer alternatives of each token (n_probs, logprobs, top_logprobs)"
            )
        if self._budget.n_bytes + n > _MOST:
            message = "The server holds as many unfinished answers as it can"
            raise TaskError(ErrorCode.UNAVAILABLE, message)
        self.n_bytes += n
        self._budget.n_bytes += n
