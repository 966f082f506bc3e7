"""One state of the feed with its number, and the events that bring a reader to it.

Frames are written once, however many readers take them.
"""

import orjson

from gateway.api.sse import named_event
from gateway.feed.changes import State, difference


class FeedState:
    """One state; the next one has the next number."""

    def __init__(self, number: int, state: State) -> None:
        self.number = number
        self.state = state
        self._frames: dict[int, bytes] = {}
        """Events that bring a reader here, by the number of the state that it has; 0 is none."""

    def __repr__(self) -> str:
        return f"<FeedState {self.number} rows={sum(map(len, self.state.values()))}>"

    def frame(self, seen: "FeedState | None") -> bytes:
        """Return the event for a reader that has the state `seen`, or none yet."""
        number = seen.number if seen is not None else 0
        if number not in self._frames:
            self._frames[number] = self._written(seen)
        return self._frames[number]

    def _written(self, seen: "FeedState | None") -> bytes:
        if seen is None:
            return named_event("state", orjson.dumps(self.state))
        return named_event("change", orjson.dumps(difference(seen.state, self.state)))
