"""The way from other threads to the link: a queue, and a byte that wakes its poll."""

import queue
import socket
from collections.abc import Sequence

from protocol.wire.messages import FrameItem


class OutboundQueue:
    """Messages of the engine and of the side threads on their way to the link."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Sequence[FrameItem]] = queue.SimpleQueue()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.fd = self._reader.fileno()
        """Readable when something was put."""

    def put(self, messages: Sequence[FrameItem]) -> None:
        """Hand messages over; safe in any thread and in signal handlers."""
        self._queue.put(messages)
        self.wake()

    def wake(self) -> None:
        """Make the link's poll return."""
        try:
            self._writer.send(b"\0")
        except OSError:  # it is full of wake-ups already, or closed at the end
            return

    def take(self) -> list[FrameItem]:
        """Return everything that was put, in order."""
        try:
            self._reader.recv(256)  # what is left, if anything, wakes the next poll
        except BlockingIOError:  # nothing was put, or its byte is still to come
            return []
        messages: list[FrameItem] = []
        while not self._queue.empty():
            messages += self._queue.get_nowait()
        return messages

    def close(self) -> None:
        """Close both ends."""
        self._reader.close()
        self._writer.close()
