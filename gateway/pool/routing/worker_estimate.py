"""What is known of one worker: what it should have cached, what it has to read, how fast it is."""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.pool.actions import TaskSpec
from gateway.pool.routing.load import PendingPrefill, Throughput
from gateway.pool.routing.prefix_index import PrefixIndex
from gateway.pool.workers import LeaseKey
from protocol.wire.messages import Done, Finish, Started, Terminal

_TELLING = 64
"""Tokens that must have been expected in the cache for the worker's count to say anything."""


@dataclass(slots=True)
class _Note:
    """A task as it was assigned."""

    spec: TaskSpec
    n_expected: float
    """Tokens that the index said are cached."""
    started_at: float = 0.0


class WorkerEstimate:
    """One connection of one worker, as far as choosing it is concerned."""

    __slots__ = ("_notes", "index", "load", "pace")

    def __init__(self, pace: Throughput, *, index_bytes: int) -> None:
        self.pace = pace
        self.load = PendingPrefill(pace)
        self.index = PrefixIndex(index_bytes)
        self._notes: dict[LeaseKey, _Note] = {}

    def __repr__(self) -> str:
        return f"<WorkerEstimate {self.index!r} {self.load!r}>"

    def tokens(self, spec: TaskSpec) -> float:
        """Guess the length of a prompt, as guesses turned out to be."""
        return spec.n_tokens * self.pace.density.value

    def expected(self, spec: TaskSpec) -> tuple[int, float]:
        """Return the blocks and the tokens that the index knows of a prompt."""
        n_blocks = self.index.match(spec.prefix.blocks)
        if not n_blocks:
            return 0, 0.0
        return n_blocks, self.tokens(spec) * n_blocks / spec.prefix.size

    def assigned(self, spec: TaskSpec, attempt: int, n_cached: int) -> None:
        """Count a task; from now on its prompt is taken for cached."""
        lease = (spec.task_id, attempt)
        self._notes[lease] = _Note(spec, self.expected(spec)[1])
        self.load.assigned(lease, max(1.0, self.tokens(spec) - n_cached))
        self.index.add(spec.task_id, spec.prefix.blocks)

    def started(self, message: Started, now: float) -> None:
        """Compare what was expected of a prompt with what the worker found."""
        lease = (message.task_id, message.attempt)
        note = self._notes.get(lease)
        if note is None or note.started_at:
            return
        note.started_at = now
        self.load.begun(lease, message.n_prompt - message.n_cached, now)
        self.pace.density.add(message.n_prompt, note.spec.n_tokens)
        if note.n_expected >= _TELLING:
            self.pace.trust.add(min(message.n_cached, note.n_expected), note.n_expected)

    def ended(self, message: Terminal, now: float) -> TaskSpec | None:
        """Note what a task has left and how long it took; return it if it was done here."""
        lease = (message.task_id, message.attempt)
        note = self._notes.pop(lease, None)
        if note is None:
            return None
        self.load.dropped(lease)
        if not isinstance(message, Done):
            self.index.forget(message.task_id)
            return None
        if message.finish is Finish.CANCELLED:  # its prompt may have been read in part
            share = message.n_past / max(1, message.n_prompt)
            prefix = note.spec.prefix
            self.index.shorten(message.task_id, prefix.blocks[: int(share * prefix.size)])
        self._measure(message, now - note.started_at if note.started_at else 0.0)
        return note.spec

    def evicted(self, tasks: Iterable[int]) -> None:
        """Forget what these tasks have left."""
        for task_id in tasks:
            self.index.forget(task_id)

    def _measure(self, done: Done, service_s: float) -> None:
        timings, pace = done.timings, self.pace
        if timings.predicted_n > 1 and timings.predicted_ms > 0:
            pace.writing.add(timings.predicted_n, timings.predicted_ms / 1000)
        if done.n_predicted and done.finish is not Finish.CANCELLED:
            pace.answer.add(done.n_predicted, 1)
            if service_s > 0:
                pace.service.add(service_s, 1)
