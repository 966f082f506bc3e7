"""The log file. Lines that cannot be written are lost; the other handlers log that.

A file that was renamed or removed is opened anew at the next line, as `WatchedFileHandler` does. So
a rotation needs no signal, which all processes of a pool would have to get.
"""

import logging
import os

from protocol.process.log_pause import LogPause

logger = logging.getLogger(__name__)


class LogFile(logging.Handler):
    """Appends each line with one write, because all processes of a pool share the file."""

    def __init__(self, path: str) -> None:
        """Open the file; raises `OSError`."""
        self._path = path
        self._fd = _opened(path)
        self._is_told = self._is_torn = False
        self._pause = LogPause()
        """On a disk that is nearly full short lines fit, so that failures come and go."""
        super().__init__()  # last: `logging` closes each handler at exit, which needs an open file

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; the first failure is logged by the other handlers."""
        try:
            line = (self.format(record) + "\n").encode(errors="backslashreplace")
        except Exception:
            self.handleError(record)
            return
        try:
            self._write(line)
        except OSError as error:
            self._failed(error)
            return
        self._is_told = False

    def _write(self, line: bytes) -> None:
        if not _is_at(self._path, self._fd):
            before, self._fd = self._fd, _opened(self._path)
            os.close(before)
            self._is_torn = False
        data = b"\n" + line if self._is_torn else line
        n_written = os.write(self._fd, data)
        if n_written < len(data):  # the next write begins a new line
            self._is_torn = True
            raise OSError(None, "only a part of a line was written")
        self._is_torn = False

    def _failed(self, error: OSError) -> None:
        if self._is_told or not self._pause.take_turn():
            return
        self._is_told = True  # before the line below, which comes here too
        logger.error(
            "log file not written",
            extra={
                "file": self._path,
                "cause": error.strerror,
                "action": "its lines are lost until it can be written again",
            },
        )

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        super().close()


def _opened(path: str) -> int:
    # Non-blocking: a pipe that nobody reads must hold up neither the start nor a line.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    return os.open(path, flags, 0o666)


def _is_at(path: str, fd: int) -> bool:
    """Return whether a path leads to an open file, or that cannot be known."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))  # noqa: PTH116
    except FileNotFoundError:
        return False
    except OSError:
        return True
