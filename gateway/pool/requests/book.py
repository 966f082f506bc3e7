"""All requests of one gateway: those that are being answered, and the latest that were. Pure.

Each ends with one log line, when its answer has ended and its workers have said what it has cost.
"""

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gateway.pool.requests.record import RequestRecord, cost_of, summary
from gateway.pool.requests.views import finished_tasks, running_view
from gateway.pool.tasks.task import Task
from gateway.usage.entry import Tokens, UsageEntry

logger = logging.getLogger(__name__)

MAX_LATEST = 1000
"""Ended requests that are remembered, a few hundred bytes each."""
MAX_TASKS = 4096
"""Tasks of these that are remembered, some two kilobytes each: a request may have hundreds."""


@dataclass(slots=True)
class EndedRequest:
    """One request that has ended."""

    number: int
    request_id: str
    row: dict[str, Any]
    """As in the log line."""
    tasks: list[dict[str, Any]] = field(default_factory=list)
    """Where its tasks went, and why."""


class RequestBook:
    """Called by the access layer and the pool; belongs to the event loop."""

    def __init__(self) -> None:
        self.pay: Callable[[UsageEntry], None] = lambda _: None
        """Takes what a request has cost."""
        self.unsettled: dict[int, RequestRecord] = {}
        """Those that are not settled, by their numbers, oldest first."""
        self._by_task: dict[int, RequestRecord] = {}
        self._latest: deque[EndedRequest] = deque()
        self._with_tasks: deque[EndedRequest] = deque()
        """The newest of these, whose tasks are remembered too."""
        self._n_tasks = 0
        self._numbers = itertools.count(1)

    def begin(self, request_id: str, method: str, path: str, now: float) -> RequestRecord:
        """Take in a request, by its head."""
        record = RequestRecord(next(self._numbers), request_id, method, path, now)
        self.unsettled[record.number] = record
        return record

    def expect(self, record: RequestRecord, task_id: int) -> None:
        """Let a task that is about to be submitted count for a request."""
        self._by_task[task_id] = record
        record.n_unsettled += 1

    def refused(self, task_id: int) -> None:
        """Forget a task that the pool did not take."""
        record = self._by_task.pop(task_id, None)
        if record is not None:
            record.n_unsettled -= 1

    def submitted(self, record: RequestRecord, task: Task) -> None:
        """Note a task that the pool has taken; it may have ended already."""
        record.tasks.append(task)
        record.model = record.model or task.spec.model

    def settled(self, task: Task) -> None:
        """Note that a task has ended, and that its cost is known."""
        record = self._by_task.pop(task.task_id, None)
        if record is None:
            self._pay_own(task)
            return
        record.n_unsettled -= 1
        if record.is_settled:
            self._end(record)

    def over(self, record: RequestRecord, status: int, duration_s: float) -> None:
        """Note that the answer to a request has ended, or that its client has left."""
        record.status, record.duration_s, record.is_over = status, duration_s, True
        if record.is_settled:
            self._end(record)

    def close(self) -> None:
        """End what is left, by what is known now: the gateway ends."""
        for record in list(self.unsettled.values()):
            for task in record.tasks:
                task.report()
            self._end(record)
        self._by_task.clear()

    def latest(self, n: int = MAX_LATEST) -> list[dict[str, Any]]:
        """Return the rows of the latest requests that asked for a model, oldest first."""
        rows = itertools.islice(reversed(self._latest), n)
        return [{"number": row.number, **row.row} for row in rows][::-1]

    def running(self) -> Iterator[RequestRecord]:
        """Go through those that ask for a model and have not ended, oldest first."""
        return (record for record in list(self.unsettled.values()) if record.model)

    def find(self, request_id: str, now: float) -> Iterator[dict[str, Any]]:
        """Go through all that is known of the requests of an id, the newest first."""
        records = list(self.unsettled.values())
        ended = list(self._latest)
        for record in reversed(records):
            if record.request_id == request_id:
                yield {**summary(record), **running_view(record, now)}
        for old in reversed(ended):
            if old.request_id == request_id:
                yield {"state": "ended", **old.row, "tasks": old.tasks}

    def _end(self, record: RequestRecord) -> None:
        """Log a request, let it be paid for, and remember it; once."""
        if self.unsettled.pop(record.number, None) is None:
            return  # `close` has done it, and its answer was cut afterwards
        row = summary(record)
        level = logging.DEBUG if record.is_quiet else logging.INFO
        logger.log(level, "request done", extra={**row})
        if record.tasks:
            self.pay(record.usage())
        if record.model:
            row["time"] = time.time()
            tasks = finished_tasks(record)
            self._remember(EndedRequest(record.number, record.request_id, row, tasks))

    def _remember(self, ended: EndedRequest) -> None:
        """Keep a request that has ended; the oldest lose their tasks first, then go."""
        self._latest.append(ended)
        self._with_tasks.append(ended)
        self._n_tasks += len(ended.tasks)
        while self._n_tasks > MAX_TASKS or len(self._with_tasks) > MAX_LATEST:
            oldest = self._with_tasks.popleft()
            self._n_tasks -= len(oldest.tasks)
            oldest.tasks = []
        if len(self._latest) > MAX_LATEST:
            self._latest.popleft()

    def _pay_own(self, task: Task) -> None:
        """Account for what the gateway itself has asked, such as golden prompts."""
        cost = cost_of([task])
        if cost != Tokens(requests=1):
            self.pay(UsageEntry(time=time.time(), model=task.spec.model, tokens=cost))
