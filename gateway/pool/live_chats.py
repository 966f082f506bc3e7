"""The chats that are being answered, by their tenants and the ids that those know."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gateway.pool.stream import TaskStream


class LiveChats:
    """Knows the streams of each answer from its first task to its last byte."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str], Sequence[TaskStream]] = {}

    def __repr__(self) -> str:
        return f"<LiveChats {len(self._streams)}>"

    @contextmanager
    def holding(self, tenant: str, chat_id: str, streams: Sequence[TaskStream]) -> Iterator[None]:
        """Know an answer for as long as it lasts; one without an id is nobody's to find."""
        if not chat_id:
            yield
            return
        self._streams[tenant, chat_id] = streams
        try:
            yield
        finally:
            del self._streams[tenant, chat_id]

    def find(self, tenant: str, chat_id: str) -> Sequence[TaskStream]:
        """Return the streams of a tenant's answer that run now; none if it is not known."""
        found = self._streams.get((tenant, chat_id), ())
        return [stream for stream in found if stream.is_open and stream.peer]
