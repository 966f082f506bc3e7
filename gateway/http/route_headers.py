"""Response headers that show how the pool routed the request."""

from collections.abc import Sequence

from gateway.pool.stream import TaskStream

ROUTE_HEADERS = ("x-llamapool-worker", "x-llamapool-route", "x-llamapool-cached")


def route_headers(streams: Sequence[TaskStream]) -> dict[str, str]:
    """Name the workers of all choices, why they went there, and the tokens found in the caches."""
    sent = [stream.task for stream in streams if stream.task.worker_name]
    if not sent:
        return {}
    workers = dict.fromkeys(_printable(task.worker_name) for task in sent)
    reasons = dict.fromkeys(task.route for task in sent if task.route)
    n_cached = sum(task.answer.n_cached for task in sent)
    values = (", ".join(workers), ", ".join(reasons), str(n_cached))
    return dict(zip(ROUTE_HEADERS, values, strict=True))


def _printable(name: str) -> str:
    """Escape a worker's name for use in a header."""
    return ascii(name)[1:-1][:64]
