"""What workers report of themselves, and how many workers, slots and waiting tasks there are."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import Metric

from gateway.metrics.families.rows import by_worker, counter, gauge
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import PoolView

_PER_WORKER = (
    ("llamapool_engine_step_seconds_total", "Time in engine steps.", "step_s"),
    ("llamapool_engine_decode_seconds_total", "Time in llama_decode.", "decode_s"),
    ("llamapool_engine_sample_seconds_total", "Time in sampling.", "sample_s"),
    ("llamapool_engine_gap_seconds_total", "Time between the decode calls of steps.", "gap_s"),
    ("llamapool_prompt_tokens_total", "Prompt tokens processed, cached ones excluded.", "n_prompt"),
    ("llamapool_cached_tokens_total", "Prompt tokens reused from the cache.", "n_cached"),
    ("llamapool_predicted_tokens_total", "Tokens generated.", "n_predicted"),
    ("llamapool_evicted_prompts_total", "Texts that left the prefix cache.", "n_evicted"),
    (
        "llamapool_restored_tokens_total",
        "Prompt tokens brought back from the host's RAM.",
        "n_restored",
    ),
    (
        "llamapool_preempted_tasks_total",
        "Tasks that gave up their cells and resumed later.",
        "n_preempted",
    ),
    ("llamapool_worker_faults_total", "Tasks that ended by a fault of their worker.", "n_faults"),
)

_LATEST = (
    ("llamapool_cache_used_cells", "Cells of the context in use.", "n_kv_used"),
    ("llamapool_cache_busy_cells", "Cells of the context that running tasks hold.", "n_kv_busy"),
    ("llamapool_cache_cells", "Cells of the context.", "n_kv"),
    ("llamapool_cache_branches", "Cached prompts beside those of the slots.", "n_branches"),
    ("llamapool_cache_host_bytes", "Size of the prompts in the host's RAM.", "n_host_bytes"),
)


def of_workers(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write the counters and the newest values of the workers' heartbeats."""
    labels, present = ("worker", "model"), {worker.name for worker in view.workers()}
    sums = by_worker(metrics.stats.sums(), present)
    for name, text, source in _PER_WORKER:
        yield counter(name, text, labels, [(key, row[source]) for key, row in sums.items()])
    latest = [
        ((worker.name, worker.model), metrics.stats.latest(worker.name))
        for worker in view.workers()
    ]
    for name, text, source in _LATEST:
        yield gauge(name, text, labels, [(key, getattr(stats, source)) for key, stats in latest])


def of_places(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write how many workers and slots there are, and how many tasks wait."""
    depths = view.queue_depths()
    # A model whose workers are all gone still has a row: 0 ready workers.
    workers: Counter[tuple[str, ...]] = Counter({(model, "ready"): 0 for model in depths})
    slots: Counter[tuple[str, ...]] = Counter()
    for worker in view.workers():
        workers[worker.model, worker.state] += 1
        slots[worker.model, "processing"] += worker.n_busy
        slots[worker.model, "idle"] += worker.n_slots - worker.n_busy
    for worker in metrics.away():
        workers[worker.model, "ready"] += 0
        workers[worker.model, worker.state.replace(" ", "_")] += 1
    labels = ("model", "state")
    yield gauge(
        "llamapool_workers",
        "Workers, connected ones and others of this host.",
        labels,
        workers.items(),
    )
    yield gauge("llamapool_slots", "Slots.", labels, slots.items())
    rows = [((model,), n) for model, n in depths.items()]
    yield gauge("llamapool_queue_tasks", "Tasks that wait.", ("model",), rows)
