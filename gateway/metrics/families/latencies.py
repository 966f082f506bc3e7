"""Histograms of times that clients wait, and what the gateway's process takes."""

from collections.abc import Iterator

from prometheus_client import Metric

from gateway.metrics.counters import LAG_S, Histogram
from gateway.metrics.families.rows import by_worker, counter, gauge, histograms
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import PoolView

_OF_MODELS = (
    (
        "llamapool_time_to_first_token_seconds",
        "From the submission of a task to its first token.",
        "ttft",
    ),
    (
        "llamapool_inter_token_latency_seconds",
        "Between two tokens of a task, as they reach the gateway.",
        "itl",
    ),
    ("llamapool_queue_seconds", "From the submission of a task to its assignment.", "queue"),
    (
        "llamapool_continued_gap_seconds",
        "Between two tokens of a task that went on at another worker in between.",
        "gap",
    ),
    (
        "llamapool_cancel_seconds",
        "From the order to cancel a task to its worker's report that the slot is free.",
        "cancel",
    ),
    (
        "llamapool_decision_seconds",
        "Time in which a task is assigned to a worker or put into the queue.",
        "decision",
    ),
)


def of_latencies(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write the times of tasks, requests and workers."""
    for name, text, source in _OF_MODELS:
        rows = [
            ((model,), getattr(latency, source)) for model, latency in metrics.latencies.items()
        ]
        yield histograms(name, text, ("model",), rows)
    yield histograms(
        "llamapool_http_request_seconds",
        "From the head of a request to the end of its answer.",
        ("route",),
        [((route,), latency) for route, latency in metrics.http.items()],
    )
    yield histograms(
        "llamapool_link_loop_lag_seconds",
        "Longest delay of a worker's main thread between two heartbeats.",
        ("worker", "model"),
        _link_lags(metrics, view),
    )


def _link_lags(metrics: Metrics, view: PoolView) -> Iterator[tuple[tuple[str, str], Histogram]]:
    parts = {key: dict(enumerate(lag.parts())) for key, lag in metrics.link_lag.items()}
    for key, row in by_worker(parts, {worker.name for worker in view.workers()}).items():
        lag = Histogram(LAG_S)
        lag.add([row[i] for i in sorted(row)])
        yield key, lag


def of_loop(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write by how much timers of the gateway's loop are late, and what its process takes."""
    lag, process = metrics.loop_lag, metrics.process
    yield histograms(
        "llamapool_gateway_loop_lag_seconds",
        "By how much timers of the gateway's loop are late.",
        (),
        [((), lag.histogram)],
    )
    yield gauge(
        "llamapool_gateway_loop_lag_max_seconds",
        "Longest delay of a timer of the gateway's loop since its start.",
        (),
        [((), lag.longest_s)],
    )
    yield counter(
        "llamapool_gateway_cpu_seconds_total",
        "CPU time of the gateway's process.",
        (),
        [((), process.cpu_s)],
    )
    yield gauge(
        "llamapool_gateway_resident_bytes",
        "Memory of the gateway's process that is in RAM.",
        (),
        [((), process.resident_bytes)],
    )
    n_restarts = metrics.n_gateway_restarts()
    yield counter(
        "llamapool_gateway_restarts_total",
        "How often a gateway of this host died and was started again.",
        (),
        [] if n_restarts is None else [((), n_restarts)],
    )
