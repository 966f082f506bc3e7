"""What is counted of a task at its end."""

from dataclasses import dataclass

from gateway.metrics.counters import ModelLatencies


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTask:
    """One task that has ended; times are those of the event loop, 0 for what never came."""

    model: str
    finish: str
    """`Finish`, or an `ErrorCode`."""
    key: str = ""
    """Name of the API key; empty without one."""
    submitted_at: float = 0.0
    started_at: float = 0.0
    """When the worker that brought the first token began with it."""
    first_at: float = 0.0
    last_at: float = 0.0
    ended_at: float = 0.0
    queue_s: float = 0.0
    """Time in the gateway's queue, before each worker that it had."""
    was_refused: bool = False
    """Whether it was refused after a wait, before any worker had it."""
    n_prompt: int = 0
    n_cached: int = 0
    n_predicted: int = 0
    n_max: int = 0
    """Bound of its answer that its request names; 0 or less is none."""

    def observe(self, latencies: ModelLatencies) -> None:
        """Count its times and lengths, as vLLM does: those of a task that had its first token."""
        if not self.first_at:
            return
        latencies.e2e.observe(self.ended_at - self.submitted_at)
        latencies.waiting.observe(self.started_at - self.submitted_at)
        latencies.prefill.observe(self.first_at - self.started_at)
        latencies.inference.observe(self.last_at - self.started_at)
        latencies.decode.observe(self.last_at - self.first_at)
        latencies.n_predicted.observe(self.n_predicted)
        if self.n_predicted > 1:
            latencies.tpot.observe((self.last_at - self.first_at) / (self.n_predicted - 1))
        if self.n_max > 0:
            latencies.n_max.observe(self.n_max)
