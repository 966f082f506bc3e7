"""A descriptor for log lines, whose reader may stop reading.

A stopped terminal, a full pipe or a stopped supervisor must not stop the process that writes: a
gateway logs on the loop that serves all clients. What does not fit now is dropped and counted.
"""

import logging
import os
import select

logger = logging.getLogger(__name__)


class LogStream:
    """Writes whole lines, as the stream of a `logging.StreamHandler`."""

    def __init__(self, fd: int) -> None:
        self._fd = _without_waiting(fd)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLOUT)
        self._n_dropped = 0
        self._is_torn = False

    def write(self, text: str) -> int:
        """Write one line, or drop it."""
        self.put(text.encode(errors="backslashreplace"))
        return len(text)

    def put(self, data: bytes) -> None:
        """Write whole lines, or drop what does not fit; tell how many once there is room again."""
        end_of_torn = b"\n" if self._is_torn else b""
        n_written = self._write(end_of_torn + data) - len(end_of_torn)
        if n_written < len(data):
            self._n_dropped += data.count(b"\n", max(0, n_written))
            self._is_torn = self._is_torn or n_written > 0
        else:
            self._is_torn = False
            self._report()

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def _write(self, data: bytes) -> int:
        """Write what there is room for now; return how many bytes were written.

        A pipe that is ready takes `PIPE_BUF` bytes in one piece.
        """
        n_written = 0
        try:
            while n_written < len(data) and self._poll.poll(0):
                n_written += os.write(self._fd, data[n_written : n_written + select.PIPE_BUF])
        except OSError:
            pass  # the reader has gone, or the disk is full: the rest counts as dropped
        return n_written

    def _report(self) -> None:
        n_dropped, self._n_dropped = self._n_dropped, 0
        if n_dropped:
            logger.warning(
                "log lines dropped",
                extra={
                    "n_lines": n_dropped,
                    "cause": "they could not be written at once",
                    "hint": "--log-file keeps every line",
                },
            )


def _without_waiting(fd: int) -> int:
    """Open a terminal again, so that writing to it never waits; return others as they are.

    A terminal that has room for some bytes counts as ready, and then makes who writes more wait.
    Only a descriptor of our own may refuse to wait: the shell and other programs share `fd`.
    """
    if not os.isatty(fd):
        return fd
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(f"/proc/self/fd/{fd}", flags)
    except OSError:
        return fd  # it belongs to another user, as after su
