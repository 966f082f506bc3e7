"""Connections of clients and of workers, and streamed responses."""

from collections.abc import Iterator

from prometheus_client import Metric

from gateway.metrics.families.rows import counter, gauge
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import PoolView


def of_connections(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write how many connections are open, were closed or refused."""
    counts = metrics.connections
    yield counter(
        "llamapool_failed_handshakes_total",
        "Connections over tcp that ended before they had proved who they are.",
        ("kind",),
        metrics.handshakes.items(),
    )
    yield gauge(
        "llamapool_http_connections", "Open connections of clients.", (), [((), counts.n_open)]
    )
    yield counter(
        "llamapool_http_connections_refused_total",
        "Connections beyond the limit: idle ones that were closed, new ones that were refused.",
        ("which",),
        [(("idle",), counts.n_closed_idle), (("new",), counts.n_refused)],
    )
    expires_at = metrics.certificate_expires_at
    yield gauge(
        "llamapool_certificate_expiry_timestamp_seconds",
        "When the certificate of TLS expires, in seconds since 1970.",
        (),
        [] if expires_at is None else [((), expires_at)],
    )
    n_kept, n_bytes = metrics.kept()
    yield gauge("llamapool_kept_streams", "Streams that can be read again.", (), [((), n_kept)])
    yield gauge(
        "llamapool_kept_stream_bytes",
        "Memory of the streams that can be read again.",
        (),
        [((), n_bytes)],
    )
    yield counter(
        "llamapool_event_streams_total",
        "Streamed responses, by what writes their events.",
        ("way",),
        metrics.event_streams.items(),
    )
