"""Estimates for one worker beside its cache: its pending prompts and its speed."""

import math

from gateway.pool.routing.load import PendingPrefill, Throughput, crowding_s, slot_wait_s
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.task import Task
from gateway.pool.workers.worker import Worker
from protocol.wire.messages import Done, Finish, Terminal

_TYPICAL_TOKENS = 1000
"""Prompt for which workers are compared that hold none of it."""
_ALIKE = math.log(1.15)
"""Workers whose times differ by less than 15 % are alike: the one unused longest comes first."""
_MAX_LENGTH_RATIO = 256
"""A worker that claims more tokens of a prompt must not make those of others look as long."""
_MIN_EXPECTED_TOKENS = 64
"""With fewer tokens expected in the cache, the number found there shows no hit ratio."""


class WorkerEstimate:
    """What the routing knows of one connection of a worker."""

    def __init__(self, throughput: Throughput, bit: int) -> None:
        self.throughput = throughput
        self.pending = PendingPrefill(throughput)
        self.bit = bit
        """The worker in the masks of the index."""

    def n_tokens(self, spec: TaskSpec) -> float:
        """Guess the length of a prompt, corrected by how such guesses turned out."""
        return spec.n_tokens * self.throughput.length_ratio.value

    def indexed(self, spec: TaskSpec, n_blocks: int) -> float:
        """Return the tokens of a prompt's first blocks."""
        return self.n_tokens(spec) * n_blocks / spec.prefix.size if n_blocks else 0.0

    def assigned(self, task: Task, n_cached: int, n_blocks: int) -> None:
        """Count a task of which `n_cached` tokens, `n_blocks` by the index, should be cached."""
        spec = task.spec
        task.n_expected, task.n_indexed = n_cached, self.indexed(spec, n_blocks)
        n_unread = self.n_tokens(spec) + task.n_resumed - n_cached
        self.pending.assigned(task, max(1.0, n_unread))

    def load(self, worker: Worker, now: float) -> tuple[bool, float]:
        """Return whether it has prompts to read, and a number that orders it among such workers.

        That is the time when it could have read one more, or else the logarithm of its cost.
        """
        cost_s = (
            slot_wait_s(self.throughput, worker.n_slots, worker.n_load)
            + _TYPICAL_TOKENS / self.throughput.prompt_per_s.value
            + crowding_s(self.throughput, worker.n_busy)
        )
        if self.pending.n_prompts:
            return True, now + self.pending.wait_s(now) + cost_s
        return False, float(round(math.log(cost_s) / _ALIKE))

    def started(self, task: Task, now: float) -> None:
        """Compare what was expected of a prompt with what the worker found."""
        self.pending.started(task, now)
        n_prompt = min(task.n_prompt, _MAX_LENGTH_RATIO * task.spec.n_tokens)
        self.throughput.length_ratio.add(n_prompt, task.spec.n_tokens)
        if task.n_indexed >= _MIN_EXPECTED_TOKENS:
            self.throughput.hit_ratio.add(min(task.n_cached, task.n_indexed), task.n_indexed)

    def ended(self, task: Task, message: Terminal, now: float) -> None:
        """Note that a task has ended, and how long it took."""
        self.pending.dropped(task)
        if isinstance(message, Done):
            self._measure(message, now - task.started_at if task.started_at is not None else 0.0)

    def _measure(self, done: Done, service_s: float) -> None:
        timings, throughput = done.timings, self.throughput
        predicted_s = min(timings.predicted_ms / 1000, service_s)
        if timings.predicted_n > 1 and predicted_s > 0:
            throughput.answer_per_s.add(timings.predicted_n, predicted_s)
        if done.n_predicted and done.finish is not Finish.CANCELLED:
            throughput.answer_tokens.add(done.n_predicted, 1)
            if service_s > 0:
                throughput.service_s.add(service_s, 1)
