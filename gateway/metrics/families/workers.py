"""What workers report of themselves, and how many workers, slots and waiting tasks there are."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.metrics.families.rows import labelled
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import PoolView

_PER_WORKER = (
    ("llamapool_engine_step_seconds", "Time in engine steps.", "step_s"),
    ("llamapool_engine_decode_seconds", "Time in llama_decode.", "decode_s"),
    ("llamapool_engine_sample_seconds", "Time in sampling.", "sample_s"),
    ("llamapool_engine_gap_seconds", "Time between the decode calls of steps.", "gap_s"),
    ("llamapool_prompt_tokens", "Prompt tokens processed, cached ones excluded.", "n_prompt"),
    ("llamapool_cached_tokens", "Prompt tokens reused from the cache.", "n_cached"),
    ("llamapool_predicted_tokens", "Tokens generated.", "n_predicted"),
    ("llamapool_evicted_prompts", "Texts that left the prefix cache.", "n_evicted"),
    ("llamapool_restored_tokens", "Prompt tokens brought back from the host's RAM.", "n_restored"),
    ("llamapool_preempted_tasks", "Tasks that gave their cells up for a while.", "n_preempted"),
    ("llamapool_worker_faults", "Tasks that ended by a fault of their worker.", "n_faults"),
)

_LATEST = (
    ("llamapool_cache_used_cells", "Cells of the context in use.", "n_kv_used"),
    ("llamapool_cache_cells", "Cells of the context.", "n_kv"),
    ("llamapool_cache_branches", "Prompts kept beside those of the slots.", "n_branches"),
    ("llamapool_cache_host_bytes", "Size of the prompts in the host's RAM.", "n_host_bytes"),
)


def of_workers(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write the counters and the newest values of the workers' heartbeats."""
    for name, text, source in _PER_WORKER:
        family = CounterMetricFamily(name, text, labels=("worker", "model"))
        for key, row in metrics.stats.rows().items():
            family.add_metric(key, row.sums[source])
        yield family
    for name, text, source in _LATEST:
        gauge = GaugeMetricFamily(name, text, labels=("worker", "model"))
        for worker in view.workers():
            latest = metrics.stats.latest(worker.name)
            gauge.add_metric((worker.name, worker.model), getattr(latest, source))
        yield gauge


def of_places(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write how many workers and slots there are, and how many tasks wait."""
    workers: Counter[tuple[str, ...]] = Counter()
    slots: Counter[tuple[str, ...]] = Counter()
    for worker in view.workers():
        workers[worker.model, worker.state] += 1
        slots[worker.model, "processing"] += worker.n_busy
        slots[worker.model, "idle"] += worker.n_slots - worker.n_busy
    depths = {(model,): n for model, n in view.queue_depths().items()}
    yield labelled(
        GaugeMetricFamily("llamapool_workers", "Connected workers.", labels=("model", "state")),
        workers.items(),
    )
    yield labelled(
        GaugeMetricFamily("llamapool_slots", "Slots.", labels=("model", "state")), slots.items()
    )
    yield labelled(
        GaugeMetricFamily("llamapool_queue_tasks", "Tasks that wait.", labels=("model",)),
        depths.items(),
    )
