"""The chats that are being answered now, by tenant and by the id that the client got."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gateway.pool.tasks.stream import TaskStream


class LiveChats:
    """The streams of each answer, from its first task to its last byte."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str], Sequence[TaskStream]] = {}

    @contextmanager
    def holding(self, tenant: str, chat_id: str, streams: Sequence[TaskStream]) -> Iterator[None]:
        """Register an answer while the block runs. One without an id cannot be looked up."""
        if not chat_id:
            yield
            return
        self._streams[tenant, chat_id] = streams
        try:
            yield
        finally:
            del self._streams[tenant, chat_id]

    def find(self, tenant: str, chat_id: str) -> Sequence[TaskStream]:
        """Return the streams of a tenant's answer that workers have now; none if it is unknown."""
        found = self._streams.get((tenant, chat_id), ())
        return [stream for stream in found if stream.is_open and stream.task.worker]
