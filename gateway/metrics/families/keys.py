"""What each API key uses and waits, under at most fifty names and `other`."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import Metric

from gateway.metrics.families.rows import counter, gauge
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import PoolView

_COUNTERS = (
    ("llamapool_key_tasks_total", "Tasks that have ended.", "tasks"),
    ("llamapool_key_refused_tasks_total", "Tasks that were turned away.", "refused"),
    ("llamapool_key_prompt_tokens_total", "Tokens of the prompts, cached ones too.", "prompt"),
    (
        "llamapool_key_cached_tokens_total",
        "Tokens of the prompts that were found in a cache.",
        "cached",
    ),
    ("llamapool_key_predicted_tokens_total", "Tokens of the answers.", "predicted"),
    ("llamapool_key_queue_seconds_total", "Time that tasks waited in the queue.", "queue_s"),
)


def of_keys(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write the counters, and how many tasks of each key wait and run."""
    keys = metrics.keys
    for name, text, what in _COUNTERS:
        rows = [((key,), n) for (key, kind), n in keys.rows.items() if kind == what]
        yield counter(name, text, ("key",), rows)
    waiting: Counter[tuple[str]] = Counter({(key,): 0 for key, _ in keys.rows})
    running = waiting.copy()
    for key, (n_waiting, n_running) in view.tasks_of_keys().items():
        waiting[(keys.label(key),)] += n_waiting
        running[(keys.label(key),)] += n_running
    yield gauge("llamapool_key_waiting_tasks", "Tasks in the queue.", ("key",), waiting.items())
    yield gauge("llamapool_key_running_tasks", "Tasks at workers.", ("key",), running.items())
