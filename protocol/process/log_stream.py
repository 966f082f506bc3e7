"""A descriptor for log lines that nobody need read.

A stopped terminal, a full pipe or a stopped supervisor must not stop the process that writes: a
gateway logs on the loop that serves all clients. What does not fit now is dropped and counted.
"""

import logging
import os
import select

logger = logging.getLogger(__name__)

_PIPE_BUF = 4096
"""Bytes that fit into a pipe that is writable (`pipe(7)`), and are written in one piece."""


class LogStream:
    """Writes whole lines, as the stream of a `logging.StreamHandler`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._n_dropped = 0
        self._is_torn = False

    def write(self, text: str) -> int:
        """Write one line, or drop it."""
        self.put(text.encode(errors="backslashreplace"))
        return len(text)

    def put(self, data: bytes) -> None:
        """Write whole lines, or drop what does not fit; tell how many once there is room again."""
        end_of_torn = b"\n" if self._is_torn else b""
        n_written = write_now(self._fd, end_of_torn + data) - len(end_of_torn)
        if n_written < len(data):
            self._n_dropped += data.count(b"\n", max(0, n_written))
            self._is_torn = self._is_torn or n_written > 0
        else:
            self._is_torn = False
            self._report()

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def _report(self) -> None:
        n_dropped, self._n_dropped = self._n_dropped, 0
        if n_dropped:
            logger.warning(
                "log lines dropped",
                extra={
                    "n_lines": n_dropped,
                    "cause": "nobody read them",
                    "hint": "--log-file keeps every line",
                },
            )


def write_now(fd: int, data: bytes) -> int:
    """Write what a reader has room for, without waiting; return how many bytes were written.

    Where the reader has gone, all counts as written: nobody misses it.
    """
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    for start in range(0, len(data), _PIPE_BUF):
        try:
            if not poller.poll(0):
                return start
            os.write(fd, data[start : start + _PIPE_BUF])
        except OSError:
            return len(data)
    return len(data)
