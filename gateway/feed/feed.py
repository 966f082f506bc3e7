"""The live feed: the newest state of the pool, for up to `MAX_READERS` readers.

It owns the newest state and the timer that renews it. Without readers only the history is sampled,
once a second. A reader holds the state that it was sent last, and gets the difference to the newest
one when it can take it: there is no queue.
"""

import asyncio
import contextlib
from collections.abc import Iterator

from gateway.feed.changes import settled
from gateway.feed.feed_state import FeedState
from gateway.feed.siblings import SiblingParts
from gateway.feed.sources import FeedSources
from protocol.errors import ErrorCode, TaskError

INTERVAL_S = 0.25
"""Seconds between two states, unless making one takes long."""
MAX_READERS = 64
"""Clients that read the feed at the same time."""
_SHARE = 50
"""Shortest pause between two states, in times that the last one took to make: the feed takes at
most 2 % of the loop."""


class PoolFeed:
    """All readers of the feed of one gateway."""

    def __init__(self, sources: FeedSources) -> None:
        self._sources = sources
        self._siblings = SiblingParts(sources)
        self._current: FeedState | None = None
        self._news = asyncio.Event()
        self.n_readers = 0
        self._n_states = 0
        self._timer: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()

    def __repr__(self) -> str:
        return f"<PoolFeed readers={self.n_readers} {self._current!r}>"

    def open(self) -> None:
        """Begin with the history; call this on the loop."""
        self._sources.sampler.open()

    def end(self) -> None:
        """End the stream of every reader, and of those to come; idempotent."""
        self._over.set()
        self._rest()
        self._news.set()

    def close(self) -> None:
        """End everything; idempotent."""
        self.end()
        self._sources.sampler.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Count a reader, for whom the state is renewed; raises `TaskError` beyond the limit."""
        if self.n_readers >= MAX_READERS:
            message = f"{MAX_READERS} clients read this stream already: try again later"
            raise TaskError(ErrorCode.OVERLOADED, message, detail={"retry_after_s": 10})
        self.n_readers += 1
        try:
            if self._timer is None and not self._over.is_set():
                self._siblings.open()
                self._renew()
            yield
        finally:
            self.n_readers -= 1
            if not self.n_readers:
                self._rest()

    async def after(self, seen: FeedState | None) -> FeedState | None:
        """Wait for a state other than `seen`, and return it; None after `end`."""
        while not self._over.is_set() and (self._current is None or self._current is seen):
            await self._news.wait()
        return None if self._over.is_set() else self._current

    async def pause(self, seconds: float) -> None:
        """Wait for a time, or until `end`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    def _rest(self) -> None:
        """Stop collecting, because there are no readers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._siblings.close()
        self._current = None

    def _renew(self) -> None:
        """Make a new state, and wake the readers if it differs from the last one."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        # Scheduled first: a fault in one state must not stop the clock.
        self._timer = loop.call_later(INTERVAL_S, self._renew)
        before = self._current
        others = self._siblings
        state = self._sources.state(others.parts, others.seconds, others.silent)
        if before is not None:
            state = settled(before.state, state)
            is_same = all(state[name] is before.state.get(name) for name in state)
        if before is None or not is_same:
            self._n_states += 1
            self._current = FeedState(self._n_states, state)
            news, self._news = self._news, asyncio.Event()
            news.set()
        if (pause_s := _SHARE * (loop.time() - began_at)) > INTERVAL_S:
            self._timer.cancel()
            self._timer = loop.call_later(pause_s, self._renew)
