"""What was counted: ends of tasks, requests, faults, routes."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from prometheus_client import Metric

from gateway.metrics.families.rows import by_worker, counter
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import PoolView

T = TypeVar("T", bound=tuple[str, ...])

_FULL = ("overloaded", "unavailable")
_PLACES = ("action", "frame", "loop", "message", "metrics", "send", "sweep", "tick")
"""Codes and places that are written from the start, as 0: `rate` does not see a first increment."""


def of_tasks(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write how tasks and requests ended."""
    yield counter(
        "llamapool_tasks_total",
        "Tasks by the way they ended.",
        ("model", "finish"),
        metrics.tasks.items(),
    )
    yield counter(
        "llamapool_refused_tasks_total",
        "Tasks that were turned away, at once or from the queue, by the code of the error.",
        ("model", "code"),
        _from_zero(
            [(model, code) for model in view.queue_depths() for code in _FULL],
            metrics.refusals,
        ),
    )
    yield counter(
        "llamapool_worker_losses_total",
        "Connections of workers that broke.",
        ("worker", "model"),
        _losses(metrics, view),
    )
    yield counter(
        "llamapool_http_requests_total",
        "Requests by route and class of status.",
        ("route", "status"),
        metrics.http_statuses.items(),
    )
    yield counter(
        "llamapool_late_messages_total",
        "Messages of attempts or workers that had been given up.",
        (),
        [((), metrics.n_late)],
    )


def of_faults(metrics: Metrics, _view: PoolView) -> Iterator[Metric]:
    """Write what broke; reads nothing that could raise, and comes last to count the other parts."""
    yield counter(
        "llamapool_gateway_faults_total",
        "Exceptions that ended one task or request and nothing else.",
        ("place",),
        _from_zero([(place,) for place in _PLACES], metrics.faults),
    )


def _losses(metrics: Metrics, view: PoolView) -> Iterable[tuple[tuple[str, str], float]]:
    counted = {key: {"n": float(n)} for key, n in metrics.losses.items()}
    rows = by_worker(counted, {worker.name for worker in view.workers()})
    shown = {key: row["n"] for key, row in rows.items()}
    return _from_zero([(worker.name, worker.model) for worker in view.workers()], shown)


def _from_zero(known: Iterable[T], counted: Mapping[T, float]) -> Iterable[tuple[T, float]]:
    """Return all counts, with 0 for known labels without one."""
    return {**dict.fromkeys(known, 0), **counted}.items()


def of_routes(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write the reasons of assignments, and the cached tokens expected and found."""
    yield counter(
        "llamapool_routed_tasks_total",
        "Assignments by what decided them.",
        ("model", "branch"),
        metrics.routes.items(),
    )
    yield counter(
        "llamapool_route_expected_cached_tokens_total",
        "Prompt tokens expected in a cache.",
        ("model",),
        metrics.expected.items(),
    )
    yield counter(
        "llamapool_route_cached_tokens_total",
        "Prompt tokens found in the cache where they were expected, of the same tasks.",
        ("model",),
        metrics.found.items(),
    )
