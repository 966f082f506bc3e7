"""Histograms of times that clients wait."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.metrics.families.rows import histograms
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import PoolView


def of_latencies(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write the times of tasks, requests and workers."""
    models = metrics.latencies
    yield histograms(
        "llamapool_time_to_first_token_seconds",
        "From the submission of a task to its first token.",
        "model",
        {name: one.ttft for name, one in models.items()},
    )
    yield histograms(
        "llamapool_inter_token_latency_seconds",
        "Between two tokens of a task, as they reach the gateway.",
        "model",
        {name: one.itl for name, one in models.items()},
    )
    yield histograms(
        "llamapool_queue_seconds",
        "From the submission of a task to its assignment.",
        "model",
        {name: one.queue for name, one in models.items()},
    )
    yield histograms(
        "llamapool_continued_gap_seconds",
        "Between two tokens of a task that went on at another worker in between.",
        "model",
        {name: one.gap for name, one in models.items()},
    )
    yield histograms(
        "llamapool_http_request_seconds",
        "From the head of a request to the end of its answer.",
        "route",
        metrics.http,
    )
    yield histograms(
        "llamapool_link_loop_lag_seconds",
        "The longest wait for a worker's main thread in each heartbeat.",
        "worker",
        metrics.link_lag,
    )


def of_loop(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write by how much timers of the gateway's loop are late."""
    lag = metrics.loop_lag
    yield HistogramMetricFamily(
        "llamapool_gateway_loop_lag_seconds",
        "By how much timers of the gateway's loop are late.",
        buckets=lag.histogram.buckets(),
        sum_value=lag.histogram.total_s,
    )
    yield GaugeMetricFamily(
        "llamapool_gateway_loop_lag_max_seconds",
        "The longest of them since the start.",
        value=lag.longest_s,
    )
