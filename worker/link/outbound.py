"""The way from other threads to the link: a queue, and a byte that wakes its poll."""

import math
import queue
import socket
import time
from collections import deque
from collections.abc import Sequence

from protocol.wire.messages import Message


class OutboundQueue:
    """Messages of the engine and of the side threads on their way to the link."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Sequence[Message], float]] = queue.SimpleQueue()
        self._held: deque[tuple[Sequence[Message], float]] = deque()
        """What has come and may not leave yet; the link's thread's alone."""
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.fd = self._reader.fileno()
        """Readable when something was put."""

    def put(self, messages: Sequence[Message], due_s: float = 0.0) -> None:
        """Hand messages over; safe in any thread and in signal handlers.

        They leave at `due_s` (monotonic), or with the first after them that leaves at once: 0.
        """
        self._queue.put((messages, due_s))
        self.wake()

    def wake(self) -> None:
        """Make the link's poll return."""
        try:
            self._writer.send(b"\0")
        except OSError:  # it is full of wake-ups already, or closed at the end
            return

    @property
    def due_s(self) -> float:
        """When the next of what is held may leave (monotonic); infinity if nothing is."""
        return self._held[0][1] if self._held else math.inf

    def take(self) -> list[Message]:
        """Return what may leave of everything that was put, in order."""
        try:
            self._reader.recv(256)  # what is left, if anything, wakes the next poll
        except BlockingIOError:  # nothing was put, or its byte is still to come
            if not self._held:
                return []
        held = self._held
        messages: list[Message] = []
        while not self._queue.empty():
            said, due_s = self._queue.get_nowait()
            if due_s:
                held.append((said, due_s))
                continue
            while held:
                messages += held.popleft()[0]
            messages += said
        while held and held[0][1] <= time.monotonic():
            messages += held.popleft()[0]
        return messages

    def close(self) -> None:
        """Close both ends."""
        self._reader.close()
        self._writer.close()
