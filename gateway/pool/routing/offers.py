"""What each worker would take for one task, in seconds. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.pool.routing.index.prefix_index import Holders
from gateway.pool.routing.load import crowding_s, slot_wait_s
from gateway.pool.routing.sessions import SessionPlacement
from gateway.pool.routing.worker_estimate import WorkerEstimate
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.workers.worker import Worker


@dataclass(frozen=True, slots=True)
class Offer:
    """One worker as the place for one task."""

    worker: Worker
    n_blocks: int
    """Blocks of the prompt that should be cached there."""
    n_own: int
    """Those of them that few other prompts share."""
    n_cached: float
    first_s: float
    """Predicted time to the first token, and by what the other streams make the answer longer."""
    cost_s: float
    """That, and the time for which the tasks that run there stand still meanwhile, summed up."""
    had_session: bool
    """Whether the task's session was there last."""


def make_offers(
    spec: TaskSpec,
    workers: Sequence[tuple[Worker, WorkerEstimate]],
    holders: Holders,
    session: SessionPlacement | None,
    now: float,
) -> list[Offer]:
    """Predict what each worker would take; `session` is where the task's session was last."""
    n_shared, n_sharers = holders.shared
    n_running = sum(worker.n_busy for worker, _ in workers) / len(workers)
    found = []
    for worker, estimate in workers:
        n_blocks = holders.depth(estimate.bit)
        throughput = estimate.throughput
        n_tokens = estimate.n_tokens(spec)
        had_session = session is not None and session.worker == worker.key
        n_cached = 0.0
        if n_blocks:
            n_cached = n_tokens * n_blocks / spec.prefix.size * throughput.hit_ratio.value
        if session is not None and had_session and not holders.max_blocks:
            n_cached = float(min(session.n_tokens, n_tokens))
        n_read = n_tokens - n_cached
        if n_blocks < n_shared:  # read once here, it serves the other prompts too
            share = (n_shared - n_blocks) / spec.prefix.size
            n_read -= n_tokens * share * (1 - 1 / n_sharers)
        read_s = n_read / throughput.prompt_per_s.value
        first_s = (
            estimate.pending.wait_s(now)
            + slot_wait_s(throughput, worker.n_slots, worker.n_load)
            + read_s
            + crowding_s(throughput, worker.n_busy)
        )
        cost_s = first_s + read_s * n_running
        n_own = max(0, n_blocks - n_shared)
        found.append(Offer(worker, n_blocks, n_own, n_cached, first_s, cost_s, had_session))
    return found
