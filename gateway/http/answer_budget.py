"""Bounds the memory of answers that are collected and sent in one piece.

An answer of 2,000 tokens with 1,000 alternatives each takes a gigabyte until it is written; a
worker that was taken over may send text without end.
"""

import asyncio
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.http.bodies.byte_budget import ByteBudget
from protocol.errors import ErrorCode, InvalidRequest, TaskError

_MIB = 1024 * 1024
_MAX_BYTES, _MAX_OF_ONE = 1024 * _MIB, 256 * _MIB
"""Of all answers together, and of one request; writing an answer takes four times its size."""
_LARGE = 16 * _MIB
"""Bytes of an answer after which free memory goes back to the system. Source: that takes a thread
16 ms for 200 MB, and a gateway has 50 MB anyway."""


class AnswerBudget(ByteBudget):
    """Counts the bytes of all answers that are being collected or sent."""

    def __init__(self) -> None:
        super().__init__(_MAX_BYTES)

    @contextmanager
    def held(self, tenant: str) -> Iterator["AnswerReservation"]:
        """Yield an empty share for the answers of one request; it is given back at the end."""
        share = AnswerReservation(self, tenant)
        try:
            yield share
        finally:
            self.add(-share.n_bytes, tenant)
            if share.n_bytes > _LARGE:
                asyncio.get_running_loop().run_in_executor(None, return_free_memory)


class AnswerReservation:
    """Bytes of the budget that one request holds."""

    __slots__ = ("_budget", "_tenant", "n_bytes")

    def __init__(self, budget: AnswerBudget, tenant: str) -> None:
        self._budget = budget
        self._tenant = tenant
        self.n_bytes = 0

    def take(self, n: int) -> None:
        """Hold more bytes; raises `TaskError` if they are too many."""
        if self.n_bytes + n > _MAX_OF_ONE:
            raise InvalidRequest(
                f"the answer takes more than {_MAX_OF_ONE // _MIB} MiB of memory: ask for less "
                "at once, stream it, or ask for fewer alternatives of each token (n_probs, "
                "logprobs, top_logprobs)"
            )
        if not self._budget.fits(n, self._tenant):
            message = "The server holds as many unfinished answers as it can"
            raise TaskError(ErrorCode.UNAVAILABLE, message)
        self.n_bytes += n
        self._budget.add(n, self._tenant)


def return_free_memory() -> bool:
    """Give free memory back to the system, which glibc does at the end of its heaps alone.

    Sixteen answers of 50 tokens with 1,024 alternatives each, in one piece of 91 MB, left 320 MB
    resident, and 170 MB with this. Returns whether there was any; elsewhere than in glibc there
    is no such call.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))
