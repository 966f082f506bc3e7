"""How a client learns to which worker its request went: by headers, or by comments in a stream.

The head of a stream may leave before a worker was chosen, with the place in the queue, and a stream
may go on at another worker. Then a comment in the stream says what the head did not.
"""

from collections.abc import Mapping, Sequence

from gateway.pool.stream import TaskStream

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
    """Tells one client of its workers: the first ones in the head, others in comments."""

    def __init__(self, streams: Sequence[TaskStream]) -> None:
        self._streams = streams
        self._told = ""

    def headers(self) -> Mapping[str, str]:
        """Return the headers for the head, which is sent now."""
        found = route_headers(self._streams)
        self._told = found.get(_WORKER, "")
        return found

    def comment(self) -> bytes:
        """Return the comment that names the workers, if the client was not told of these before.

        The name is last: it may hold any printable ASCII.
        """
        found = route_headers(self._streams)
        workers, route, n_cached, queue_ms = (found.get(name, "") for name in ROUTE_HEADERS)
        if workers == self._told:
            return b""
        self._told = workers
        facts = f"queue_ms={queue_ms} cached={n_cached} route={route.replace(' ', '')}"
        return f": worker {facts} name={workers}\n\n".encode()


def _printable(name: str) -> str:
    """Escape a worker's name for use in a header."""
    return ascii(name)[1:-1][:64]
