"""What a response's headers tell of the way that its request took through the pool."""

from collections.abc import Sequence

from gateway.pool.stream import TaskStream

ROUTE_HEADERS = ("x-llamapool-worker", "x-llamapool-route", "x-llamapool-cached")


def route_headers(streams: Sequence[TaskStream]) -> dict[str, str]:
    """Name the workers of all choices, why they went there, and the tokens found in the caches."""
    sent = [stream for stream in streams if stream.worker]
    if not sent:
        return {}
    workers = dict.fromkeys(_printable(stream.worker) for stream in sent)
    branches = dict.fromkeys(stream.branch for stream in sent if stream.branch)
    n_cached = sum(stream.n_cached for stream in sent)
    values = (", ".join(workers), ", ".join(branches), str(n_cached))
    return dict(zip(ROUTE_HEADERS, values, strict=True))


def _printable(name: str) -> str:
    """Write a worker's name so that it may stand in a header."""
    return ascii(name)[1:-1][:64]
