"""All kept streams of this gateway, by API key and conversation id; bounded in number and bytes.

Requests without a key share one namespace, in which the id alone opens a stream. Room is made
from the key that keeps most, and there from the ended stream that began first.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from starlette.types import Message

from gateway.replay.session import MAX_BYTES, StreamSession
from protocol.config.limits import LimitsConfig
from protocol.errors import ErrorCode, TaskError

KEEP_S = 300.0
"""Time for which a stream can be read after its end; llama-server's number."""
_MIB = 1024 * 1024
_MAX_PARTS = 16
"""Maximum number of `::` at which a lookup cuts an id: 4,096 ids may have 1,023 of them each."""
_DROP_BYTES = 256 * 1024
"""Bytes dropped at once from a running stream when all of them together are too large."""


_Sessions = dict[str, StreamSession]
"""The sessions of one key by conversation id, in the order in which they began."""


class StreamSessions:
    """Owns the sessions; belongs to the event loop."""

    def __init__(self, limits: LimitsConfig, keep_s: float = KEEP_S) -> None:
        self._max_streams = limits.kept_streams
        self._max_streams_of_key = limits.kept_streams_of_key
        self._max_bytes = limits.kept_mib * _MIB
        self._keep_s = keep_s
        self._of_key: dict[str, _Sessions] = {}
        self._timers: dict[StreamSession, asyncio.TimerHandle] = {}
        self._is_draining = False
        self.n_bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._of_key.values()))

    def size(self) -> tuple[int, int]:
        """Return the number of the sessions, and their bytes."""
        return len(self), self.n_bytes

    @property
    def is_on(self) -> bool:
        """Whether any stream is kept."""
        return self._max_streams > 0

    def begin(self, key: str, conversation_id: str) -> StreamSession:
        """Keep a new stream; one of this id is ended. Raises `TaskError` if there is no room."""
        self.end(key, conversation_id)
        own = self._of_key.get(key, {})
        if key and len(own) >= self._max_streams_of_key and not self._forget_one({key: own}):
            message = f"The key keeps {len(own)} streams that all run, as many as it may"
            raise _full(message, "kept_streams_of_key")
        if len(self) >= self._max_streams and not self._forget_one(self._of_key):
            message = f"The server keeps {len(self)} streams that all run, as many as it can"
            raise _full(message, "kept_streams")
        session = StreamSession(key, conversation_id)
        self._of_key.setdefault(key, {})[conversation_id] = session
        return session

    def find(self, key: str, conversation_id: str) -> StreamSession | None:
        """Return the stream of this id."""
        return self._of_key.get(key, {}).get(conversation_id)

    def lookup(self, key: str, conversation_ids: Sequence[str]) -> list[StreamSession]:
        """Return the streams of these ids, also of `<id>::<model>`; each once."""
        wanted = dict.fromkeys(conversation_ids)
        found: dict[str, list[StreamSession]] = {name: [] for name in wanted}
        for session in self._of_key.get(key, {}).values():
            for name in _names(session.conversation_id):
                if name in wanted:
                    found[name].append(session)
        return list(
            dict.fromkeys(session_id for sessions in found.values() for session_id in sessions)
        )

    def end(self, key: str, conversation_id: str) -> bool:
        """End and forget the stream of this id; returns whether there was one."""
        session = self.find(key, conversation_id)
        if session is None:
            return False
        session.stop()
        self._forget(session)
        return True

    def take(self, session: StreamSession, message: Message) -> None:
        """Add to a stream, and make room for it; what was ended meanwhile takes nothing."""
        n_before = session.n_bytes
        session.take(message)
        if self.find(session.key, session.conversation_id) is not session:
            return
        session.drop(session.n_bytes - MAX_BYTES)
        self.n_bytes += session.n_bytes - n_before
        while self.n_bytes > self._max_bytes:
            if not self._forget_one(self._of_key, _bytes_of):
                self._shorten_longest()

    def over(self, session: StreamSession) -> None:
        """End a stream whose handler has ended; one that never began is forgotten."""
        session.finish()
        if self.find(session.key, session.conversation_id) is not session:
            return
        if session.head is None:
            self._forget(session)
            return
        loop = asyncio.get_running_loop()
        self._timers[session] = loop.call_later(self._keep_s, self._forget, session)

    @contextmanager
    def reading(self, session: StreamSession) -> Iterator[None]:
        """Count a reader of a stream while the block runs."""
        session.n_readers += 1
        try:
            yield
        finally:
            session.n_readers -= 1
            if self._is_draining:
                self._stop_unread(session)

    def drain(self) -> None:
        """End what runs without a reader, now and later: no other process could show it."""
        self._is_draining = True
        for sessions in self._of_key.values():
            for session in sessions.values():
                self._stop_unread(session)

    def close(self) -> None:
        """Forget everything."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._of_key.clear()
        self.n_bytes = 0

    def _stop_unread(self, session: StreamSession) -> None:
        if not session.n_readers and not session.is_over:
            session.stop(by_client=False)

    def _forget(self, session: StreamSession) -> None:
        timer = self._timers.pop(session, None)
        if timer is not None:
            timer.cancel()
        sessions = self._of_key[session.key]
        del sessions[session.conversation_id]
        if not sessions:
            del self._of_key[session.key]
        self.n_bytes -= session.n_bytes

    def _forget_one(
        self, of_key: Mapping[str, _Sessions], measure: Callable[[_Sessions], int] = len
    ) -> bool:
        """Forget an ended stream of the key that has most; false if all run or are being read."""
        for sessions in sorted(of_key.values(), key=measure, reverse=True):
            unread = (session for session in sessions.values() if not session.n_readers)
            ended = next((session for session in unread if session.is_over), None)
            if ended is not None:
                self._forget(ended)
                return True
        return False

    def _shorten_longest(self) -> None:
        """Drop the beginning of the longest stream: not all, its readers are near the end."""
        every = (session for sessions in self._of_key.values() for session in sessions.values())
        longest = max(every, key=lambda session: session.n_bytes)
        n_before = longest.n_bytes
        longest.drop(min(_DROP_BYTES, (n_before + 1) // 2))
        self.n_bytes -= n_before - longest.n_bytes


def _bytes_of(sessions: _Sessions) -> int:
    return sum(session.n_bytes for session in sessions.values())


def _names(conversation_id: str) -> Iterator[str]:
    """Yield the ids by which a stream is found: its own, and what of it stands before a `::`."""
    yield conversation_id
    end = conversation_id.find("::")
    for _ in range(_MAX_PARTS):
        if end < 0:
            return
        yield conversation_id[:end]
        end = conversation_id.find("::", end + 1)


def _full(message: str, key: str) -> TaskError:
    hint = f"({key} of [gateway.limits]); without X-Conversation-Id a stream is not kept"
    return TaskError(ErrorCode.OVERLOADED, f"{message} {hint}")
