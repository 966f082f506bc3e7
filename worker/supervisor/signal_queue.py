"""Queue of received signals: the handler only wakes the loop, which decides what they mean."""

import contextlib
import selectors
import signal
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from types import FrameType

from protocol.errors import EXIT_OK


@contextlib.contextmanager
def starting(*, is_terminal: bool) -> Iterator[None]:
    """Until a `SignalQueue` is attached, SIGTERM ends the start, which cleans up, with code 0.

    SIGHUP waits, because it asks for a reload; at a terminal it says that this is gone, and ends
    the start, too.
    """
    ending = (signal.SIGTERM, signal.SIGHUP) if is_terminal else (signal.SIGTERM,)
    before = {number: signal.signal(number, _end) for number in ending}
    if not is_terminal:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def _end(_number: int, _: FrameType | None) -> None:
    raise SystemExit(EXIT_OK)


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
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._numbers)  # see `starting`
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
