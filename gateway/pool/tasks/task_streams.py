"""The streams of all tasks that clients wait for."""

import asyncio

from gateway.metrics.metrics import Metrics
from gateway.pool.tasks.stream import DeltaOffers, TaskStream
from protocol.errors import ErrorCode, shutting_down
from protocol.wire.messages import Generate


class TaskStreams:
    """Keeps them until they end; counts how each of them did."""

    def __init__(self, metrics: Metrics) -> None:
        self.by_id: dict[int, TaskStream] = {}
        self.offers = DeltaOffers()
        self._metrics = metrics
        self._idle = asyncio.Event()

    def add(self, stream: TaskStream) -> None:
        """Take in the stream of a new task."""
        self.by_id[stream.task_id] = stream

    def end(self, stream: TaskStream, finish: str) -> None:
        """Forget a stream that has ended."""
        task = stream.task
        task.finish = str(finish)
        del self.by_id[task.task_id]
        if not self.by_id:
            self._idle.set()
        if not isinstance(stream.request, Generate):
            return
        ended = stream.ended(finish, asyncio.get_running_loop().time())
        self._metrics.ended(ended)
        if task.spec.trace is not None:
            task.spec.trace.ended(stream.request, ended, task.attempts)

    def close(self) -> None:
        """Fail those that are left."""
        for stream in list(self.by_id.values()):
            stream.fail(shutting_down())
            self.end(stream, ErrorCode.UNAVAILABLE)

    async def drained(self) -> None:
        """Wait until every task has ended."""
        while self.by_id:
            self._idle.clear()
            await self._idle.wait()
