"""Connections of clients and of workers, and streamed responses."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.metrics.families.rows import labelled
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import PoolView


def of_connections(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write how many connections are open, were closed or refused."""
    counts = metrics.connections
    yield labelled(
        CounterMetricFamily(
            "llamapool_failed_handshakes",
            "Connections over tcp that ended before they had proved who they are.",
            labels=("kind",),
        ),
        metrics.handshakes.items(),
    )
    yield GaugeMetricFamily(
        "llamapool_http_connections", "Open connections of clients.", value=counts.n_open
    )
    family = CounterMetricFamily(
        "llamapool_http_connections_refused",
        "Connections beyond the limit: idle ones that were closed, new ones that were refused.",
        labels=("which",),
    )
    rows = {("idle",): counts.n_closed_idle, ("new",): counts.n_refused}
    yield labelled(family, rows.items())
    yield labelled(
        CounterMetricFamily(
            "llamapool_event_streams",
            "Streamed responses, by what writes their events.",
            labels=("way",),
        ),
        metrics.event_streams.items(),
    )
