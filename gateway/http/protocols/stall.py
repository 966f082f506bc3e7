"""Cuts a connection whose client reads nothing of the data that waits for it."""

import asyncio


class StallWatch:
    """Watches the unsent data of a transport; no timer runs while there is none."""

    __slots__ = ("_limit_s", "_loop", "_n_taken", "_n_written", "_timer", "_transport")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.WriteTransport, limit_s: float
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._limit_s = limit_s
        self._n_written = 0
        self._n_taken = 0
        self._timer: asyncio.TimerHandle | None = None

    def wrote(self, n: int) -> None:
        """Count bytes that were written, and watch if any of them wait to be sent."""
        self._n_written += n
        if self._timer is None and (n_waiting := self._transport.get_write_buffer_size()):
            self._n_taken = self._n_written - n_waiting
            self._timer = self._loop.call_later(self._limit_s, self._look_again)

    def stop(self) -> None:
        """Stop the timer; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_again(self) -> None:
        self._timer = None
        n_waiting = self._transport.get_write_buffer_size()
        if n_waiting and self._n_written - n_waiting == self._n_taken:
            self._transport.abort()
        else:
            self.wrote(0)
