"""What was counted: ends of tasks, requests, faults, routes."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.metrics.families.rows import labelled
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import PoolView


def of_tasks(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write how tasks and requests ended, and what broke."""
    yield labelled(
        CounterMetricFamily(
            "llamapool_tasks", "Tasks by the way they ended.", labels=("model", "finish")
        ),
        metrics.tasks.items(),
    )
    yield labelled(
        CounterMetricFamily(
            "llamapool_worker_losses",
            "Connections of workers that broke.",
            labels=("worker", "model"),
        ),
        metrics.losses.items(),
    )
    yield labelled(
        CounterMetricFamily(
            "llamapool_http_requests",
            "Requests by route and class of status.",
            labels=("route", "status"),
        ),
        metrics.http_statuses.items(),
    )
    yield labelled(
        CounterMetricFamily(
            "llamapool_gateway_faults",
            "Exceptions that ended one task or request and nothing else.",
            labels=("place",),
        ),
        metrics.faults.items(),
    )
    yield CounterMetricFamily(
        "llamapool_late_messages",
        "Messages of attempts or workers that had been given up.",
        value=metrics.n_late,
    )


def of_routes(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write what decided the assignments, and what of prompts was cached."""
    rows: tuple[tuple[str, str, str, Counter[Any]], ...] = (
        ("routed_tasks", "Assignments by what decided them.", "branch", metrics.routes),
        ("route_expected_cached_tokens", "Tokens expected in a cache.", "", metrics.expected),
        ("route_cached_tokens", "Tokens found there, of the same tasks.", "", metrics.found),
    )
    for name, text, label, counts in rows:
        labels = ("model", label) if label else ("model",)
        family = CounterMetricFamily(f"llamapool_{name}", text, labels=labels)
        yield labelled(family, counts.items())
