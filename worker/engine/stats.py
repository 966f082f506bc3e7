"""Counters of the engine, and the progress that watchdogs see."""

import time
from dataclasses import dataclass, field, fields

from protocol.errors import TaskError
from protocol.wire.accounts import CACHED, PREDICTED, READ, AccountTable
from protocol.wire.facts import Stats
from protocol.wire.messages import TaskKey
from worker.engine.task import internal_error

_STALL_FACTOR = 20
"""A piece of work is stuck after this many times the slowest step so far, or its expected time."""
_MAX_STALL_S = 120.0
"""Bound of that in seconds, so that a row of slow steps cannot raise the limit without end."""
_LONG_FACTOR = 3
"""Work that is known to take long may take this many times its expected time in any case."""
_ENCODE_S = 40.0
"""Seconds that an encoder may take for an image or a sound. Its speed is not known before: a GPU
takes 0.1 s; two cores take 25 s for 2,304 patches with 0.3 billion parameters."""


@dataclass(slots=True)
class EngineProgress:
    """What the engine's thread works on: written by that thread, read by any.

    A piece of work is a command, an admission, a job or a step.
    """

    number: int = 0
    """Pieces of work started so far."""
    started_s: float = 0.0
    """Start of the piece in progress (monotonic), or 0 while the thread waits for commands."""
    slowest_s: float = 0.0
    """The longest step or long call so far."""
    expected_s: float = 0.0
    """What the piece in progress should take; 0 if it is not known to be long."""
    min_stall_s: float = 10.0
    """No piece of work counts as stuck before it took this long."""

    def begin(self) -> None:
        """Begin a piece of work."""
        self.number += 1
        self.expected_s = 0.0
        self.started_s = time.monotonic()

    def expect(self, seconds: float) -> None:
        """Note how long the piece in progress should take."""
        self.expected_s = seconds

    def expect_media(self, n: int, seconds: float) -> None:
        """Note the same of `n` images or sounds; their encoder comes on top."""
        self.expect(n * _ENCODE_S + seconds)

    def rest(self) -> None:
        """Note that nothing runs."""
        self.started_s = 0.0

    @property
    def stall_s(self) -> float:
        """Seconds that a piece of work may take before the engine counts as stuck."""
        known_s = min(_STALL_FACTOR * max(self.slowest_s, self.expected_s), _MAX_STALL_S)
        return max(self.min_stall_s, known_s, _LONG_FACTOR * self.expected_s)

    def took(self, elapsed_s: float) -> None:
        """Note how long a step or a long call took."""
        self.slowest_s = max(self.slowest_s, elapsed_s)


@dataclass(slots=True, kw_only=True)
class Counters(Stats):
    """The engine's own `Stats`; written by its thread only."""

    accounts: AccountTable = field(default_factory=AccountTable)
    """The cost of each attempt in a row of its own, and the sums over all attempts."""

    def read(self, account: memoryview, n: int) -> None:
        """Count tokens of a prompt that were computed for an attempt."""
        account[READ] += n
        self.n_prompt += n
        self.accounts.sums[READ] = self.n_prompt

    def reused(self, account: memoryview, n: int) -> None:
        """Count tokens that were found in the cache for an attempt."""
        account[CACHED] += n
        self.n_cached += n
        self.accounts.sums[CACHED] = self.n_cached

    def predicted(self, account: memoryview) -> None:
        """Count a token that was generated for an attempt."""
        account[PREDICTED] += 1
        self.n_predicted += 1
        self.accounts.sums[PREDICTED] = self.n_predicted

    def fault(self, key: TaskKey, error: Exception) -> TaskError:
        """Log and count an unexpected exception; return the error for the client."""
        self.n_faults += 1
        return internal_error(key, error)

    def draft_checked(self, n_drafted: int, n_accepted: int) -> None:
        """Count a draft of which the first `n_accepted` tokens were right."""
        self.n_drafts += 1
        self.n_draft += n_drafted
        self.n_draft_accepted += n_accepted
        before = self.accepted_at + (0,) * (n_accepted - len(self.accepted_at))
        self.accepted_at = tuple(n + (i < n_accepted) for i, n in enumerate(before))

    def decoded(self, n_rows: int, start_s: float, last_end_s: float) -> None:
        """Count a decode call that ends now; `last_end_s` is the end of the one before, or 0."""
        if last_end_s:
            self.gap_s += start_s - last_end_s
        self.decode_s += time.perf_counter() - start_s
        self.n_decode += 1
        self.n_busy += n_rows

    def computed(self, n_inputs: int) -> None:
        """Count a decode call that samples nothing; each of its inputs is a busy slot."""
        self.n_decode += 1
        self.n_busy += n_inputs

    def snapshot(self) -> Stats:
        """Return a copy that goes into a message."""
        return Stats(**{each.name: getattr(self, each.name) for each in fields(Stats)})
