"""Tells a client which worker has its request: by headers, or by comments in a stream.

The head of a stream may be sent before a worker was chosen, and a stream may continue at another
worker. A comment in the stream then names the worker.
"""

from collections.abc import Mapping, Sequence

from gateway.pool.tasks.stream import TaskStream

_WORKER = "x-llamapool-worker"
ROUTE_HEADERS = (_WORKER, "x-llamapool-route", "x-llamapool-cached", "x-llamapool-queue-ms")


def route_headers(streams: Sequence[TaskStream]) -> dict[str, str]:
    """Name the workers of all choices, why they went there, and what was found in their caches.

    The time in the queue is that of the choice which waited longest.
    """
    sent = [stream.task for stream in streams if stream.task.worker_name]
    if not sent:
        return {}
    workers = dict.fromkeys(_printable(task.worker_name) for task in sent)
    reasons = dict.fromkeys(task.route for task in sent if task.route)
    n_cached = sum(task.answer.n_cached for task in sent)
    queue_s = max(task.waited_s for task in sent)
    values = (", ".join(workers), ", ".join(reasons), str(n_cached), f"{queue_s * 1e3:.0f}")
    return dict(zip(ROUTE_HEADERS, values, strict=True))


class RouteNotice:
    """Names the workers of one request: the first ones in the head, later ones in comments."""

    def __init__(self, streams: Sequence[TaskStream]) -> None:
        self._streams = streams
        self._named = ""

    def headers(self) -> Mapping[str, str]:
        """Return the headers for the head, which is sent now."""
        found = route_headers(self._streams)
        self._named = found.get(_WORKER, "")
        return found

    def comment(self) -> bytes:
        """Return the comment that names the workers; empty if they were named before.

        The name is last: it may hold any printable ASCII.
        """
        found = route_headers(self._streams)
        workers, route, n_cached, queue_ms = (found.get(name, "") for name in ROUTE_HEADERS)
        if workers == self._named:
            return b""
        self._named = workers
        facts = f"queue_ms={queue_ms} cached={n_cached} route={route.replace(' ', '')}"
        return f": worker {facts} name={workers}\n\n".encode()


def _printable(name: str) -> str:
    """Escape a worker's name for use in a header."""
    return ascii(name)[1:-1][:64]
