"""Queue of received signals: the handler only wakes the loop, which decides what they mean."""

import contextlib
import selectors
import signal
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from types import FrameType


class SignalQueue:
    """The signals that arrived, in order, and a descriptor that makes `select` return for them."""

    def __init__(self, numbers: Sequence[signal.Signals]) -> None:
        self._numbers = numbers
        self._arrived: deque[signal.Signals] = deque()

    @contextlib.contextmanager
    def attached(self, selector: selectors.BaseSelector) -> Iterator[None]:
        """Handle the signals within the block."""
        ours, wakes = socket.socketpair()
        ours.setblocking(False)
        wakes.setblocking(False)
        selector.register(ours, selectors.EVENT_READ, lambda: ours.recv(4096))
        before = {number: signal.signal(number, self._enqueue) for number in self._numbers}
        fd_before = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(fd_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            selector.unregister(ours)
            ours.close()
            wakes.close()

    def _enqueue(self, number: int, _: FrameType | None) -> None:
        self._arrived.append(signal.Signals(number))

    def take(self) -> Iterator[signal.Signals]:
        """Yield the received signals and clear the queue."""
        while self._arrived:
            yield self._arrived.popleft()
