"""Adds the id of the HTTP request to every log line that names a task."""

import logging

MAX_KNOWN = 8192
"""Tasks that are remembered; the one noted first is forgotten first."""
_LONGEST = 256
"""Characters of an id that are kept: a gateway lets no longer one pass."""


class RequestIds(logging.Filter):
    """A filter for the handlers of a process; one thread notes, any thread logs."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: dict[int, str] = {}

    def note(self, task: int, request_id: str) -> None:
        """Store the request id of a task; a task id of two gateways gets none."""
        request_id = request_id[:_LONGEST]
        before = self._ids.pop(task, request_id)
        self._ids[task] = request_id if before == request_id else ""
        if len(self._ids) > MAX_KNOWN:
            del self._ids[next(iter(self._ids))]

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every line pass, with the id where there is one."""
        task = getattr(record, "task", None)
        if isinstance(task, int) and (request_id := self._ids.get(task)):
            record.request_id = getattr(record, "request_id", None) or request_id
        return True

    def install(self) -> None:
        """Put it before everything that writes log lines."""
        for handler in logging.getLogger().handlers:
            handler.addFilter(self)
