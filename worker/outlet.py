"""The way from other threads to the link: a queue, and a byte that wakes its poll."""

import contextlib
import queue
import socket
from collections.abc import Sequence

from protocol.messages import Message


class Outlet:
    """Messages of the engine and of the side threads on their way to the link."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Sequence[Message]] = queue.SimpleQueue()
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)

    def put(self, messages: Sequence[Message]) -> None:
        """Hand messages over; safe in any thread and in signal handlers."""
        self._queue.put(messages)
        self.wake()

    def wake(self) -> None:
        """Make the link's poll return."""
        with contextlib.suppress(OSError):  # it is full of wake-ups already, or closed at the end
            self._writer.send(b"\0")

    def take(self) -> list[Message]:
        """Return everything that was put, in order."""
        with contextlib.suppress(BlockingIOError):
            self.reader.recv(4096)  # what is left, if anything, wakes the next poll
        messages: list[Message] = []
        while not self._queue.empty():
            messages += self._queue.get_nowait()
        return messages

    def close(self) -> None:
        """Close both ends."""
        self.reader.close()
        self._writer.close()
