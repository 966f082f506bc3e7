"""What is known of one worker: what it should have cached, what it has to read, how fast it is."""

from collections.abc import Iterable

from gateway.pool.routing.load import PendingPrefill, Throughput
from gateway.pool.routing.prefix_index import PrefixIndex
from gateway.pool.task import Task, TaskSpec
from protocol.wire.messages import Done, Finish, Terminal

_MIN_EXPECTED_TOKENS = 64
"""With fewer tokens expected in the cache, the number found there shows no hit ratio."""


class WorkerEstimate:
    """One connection of one worker, as far as choosing it is concerned."""

    __slots__ = ("index", "pending", "throughput")

    def __init__(self, throughput: Throughput, *, index_bytes: int) -> None:
        self.throughput = throughput
        self.pending = PendingPrefill(throughput)
        self.index = PrefixIndex(index_bytes)

    def __repr__(self) -> str:
        return f"<WorkerEstimate {self.index!r} {self.pending!r}>"

    def n_tokens(self, spec: TaskSpec) -> float:
        """Guess the length of a prompt, corrected by how such guesses turned out."""
        return spec.n_tokens * self.throughput.length_ratio.value

    def indexed(self, spec: TaskSpec) -> tuple[int, float]:
        """Return the blocks and the tokens of a prompt that the index holds."""
        n_blocks = self.index.match(spec.prefix.blocks)
        if not n_blocks:
            return 0, 0.0
        return n_blocks, self.n_tokens(spec) * n_blocks / spec.prefix.size

    def assigned(self, task: Task, n_cached: int) -> None:
        """Count a task; from now on its prompt is taken for cached."""
        spec = task.spec
        task.n_expected, task.n_indexed = n_cached, self.indexed(spec)[1]
        self.pending.assigned(task, max(1.0, self.n_tokens(spec) - n_cached))
        self.index.add(task.task_id, spec.prefix.blocks)

    def started(self, task: Task, now: float) -> None:
        """Compare what was expected of a prompt with what the worker found."""
        self.pending.started(task, now)
        self.throughput.length_ratio.add(task.n_prompt, task.spec.n_tokens)
        if task.n_indexed >= _MIN_EXPECTED_TOKENS:
            self.throughput.hit_ratio.add(min(task.n_cached, task.n_indexed), task.n_indexed)

    def ended(self, task: Task, message: Terminal, now: float) -> None:
        """Note what a task has left in the cache, and how long it took."""
        self.pending.dropped(task)
        if not isinstance(message, Done):
            self.index.forget(task.task_id)
            return
        if message.finish is Finish.CANCELLED:  # its prompt may have been read in part
            share = message.n_past / max(1, message.n_prompt)
            prefix = task.spec.prefix
            self.index.shorten(task.task_id, prefix.blocks[: int(share * prefix.size)])
        self._measure(message, now - task.started_at if task.started_at is not None else 0.0)

    def evicted(self, tasks: Iterable[int]) -> None:
        """Forget what these tasks have left."""
        for task_id in tasks:
            self.index.forget(task_id)

    def _measure(self, done: Done, service_s: float) -> None:
        timings, throughput = done.timings, self.throughput
        if timings.predicted_n > 1 and timings.predicted_ms > 0:
            throughput.answer_per_s.add(timings.predicted_n, timings.predicted_ms / 1000)
        if done.n_predicted and done.finish is not Finish.CANCELLED:
            throughput.answer_tokens.add(done.n_predicted, 1)
            if service_s > 0:
                throughput.service_s.add(service_s, 1)
