"""Logging of every process: one line an event, key=value, to stderr.

`2026-11-21T07:40:01.123Z INFO gateway.pool worker lost worker=smol-1`. Under the journal the time
is left out and the level becomes its priority prefix; `json` makes each line an object.
"""

import json as json_module
import logging
import os
import sys
import time
from typing import Protocol

_PRIORITY = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


class Writable(Protocol):
    """Where log lines go."""

    def write(self, text: str, /) -> object:
        """Take text."""

    def flush(self) -> object:
        """Let go of what is held back."""


class _Lines(logging.Formatter):
    """Plain lines; `process` stands before the logger's name where that does not say it."""

    def __init__(self, process: str, *, journal: bool) -> None:
        super().__init__()
        self._process = process
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        message = super().format(record)
        name = record.name
        if name != self._process and not name.startswith(f"{self._process}."):
            name = f"{self._process} {name}"
        if self._journal:
            priority = next((p for level, p in _PRIORITY if record.levelno >= level), 7)
            return f"<{priority}>{name} {message}"
        return f"{_time(record)} {record.levelname} {name} {message}"


class _Objects(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _time(record),
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json_module.dumps(fields)


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def configure(
    process: str, *, level: str = "INFO", json: bool = False, stream: Writable | None = None
) -> None:
    """Send the log of this process to stderr, or to `stream`, in place of any earlier set-up."""
    target: Writable = stream or sys.stderr
    handler = logging.StreamHandler(target)
    formatter = _Objects(process) if json else _Lines(process, journal=is_journal(2))
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def is_journal(fd: int) -> bool:
    """Tell whether a descriptor is the one that `JOURNAL_STREAM` names.

    The variable alone says nothing: terminals of a desktop session inherit it too.
    """
    try:
        return os.environ.get("JOURNAL_STREAM", "") == stream_id(fd)
    except OSError:
        return False


def stream_id(fd: int) -> str:
    """Name a descriptor as `JOURNAL_STREAM` does: device and inode."""
    stat = os.fstat(fd)
    return f"{stat.st_dev}:{stat.st_ino}"
