"""Logging of every process: one line an event, key=value, to stderr and to a file if one is named.

`2026-11-21T07:40:01.123Z INFO gateway.pool.pool worker lost worker=smol-1`. Under the journal the
time is left out and the level becomes its priority prefix; `json` makes each line an object.

A child of our supervisor logs to a pipe of its own (`LOG_FD_VARIABLE`): what libraries write to its
standard error, whatever that is, cannot be taken for a line of the log.
"""

import json as json_module
import logging
import os
import sys
import time
from pathlib import Path
from typing import Protocol

from protocol.config.config import LogConfig
from protocol.errors import ConfigError

LOG_FD_VARIABLE = "LLAMAPOOL_LOG_FD"
"""Names the descriptor for log lines in the environment of a child."""

_PRIORITY = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_COLORS = ((logging.ERROR, "31"), (logging.WARNING, "33"))
_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 0: logging.INFO, 3: logging.INFO}
"""llama-server's verbosity of today; 0 was the normal one of 2024."""


class Writable(Protocol):
    """Where log lines go."""

    def write(self, text: str, /) -> object:
        """Take text."""

    def flush(self) -> object:
        """Let go of what is held back."""


class _Lines(logging.Formatter):
    """Plain lines; `process` stands before the logger's name where that does not say it."""

    def __init__(self, process: str, config: LogConfig, *, look: str) -> None:
        super().__init__()
        self._process = process
        self._config = config
        self._look = look

    def format(self, record: logging.LogRecord) -> str:
        message = one_line(record.getMessage())
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            message += "".join(f"\n    {one_line(line)}" for line in trace.split("\n"))
        name = record.name
        if name != self._process and not name.startswith(f"{self._process}."):
            name = f"{self._process} {name}"
        if self._look == "journal":
            priority = next((p for level, p in _PRIORITY if record.levelno >= level), 7)
            return f"<{priority}>{name} {message}"
        words = [message]
        if self._config.prefix:
            words[:0] = [self._level(record), name]
        if self._config.timestamps:
            words.insert(0, _time(record))
        return " ".join(words)

    def _level(self, record: logging.LogRecord) -> str:
        color = next((code for level, code in _COLORS if record.levelno >= level), "")
        if self._look != "color" or not color:
            return record.levelname
        return f"\x1b[{color}m{record.levelname}\x1b[0m"


def one_line(text: str) -> str:
    """Write what would end the line, or steer a terminal, as an escape: nobody forges a line."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    return char if char.isprintable() or char == "\t" else ascii(char)[1:-1]


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
    process: str, config: LogConfig | None = None, *, stream: Writable | None = None
) -> None:
    """Send the log of this process to stderr, or to `stream`, in place of any earlier set-up.

    Raises `ConfigError` if the file that the configuration names cannot be written.
    """
    config = config or LogConfig()
    fd = 2
    if stream is None and (own := _own_fd()) is not None:
        fd = own
        stream = open(fd, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 # for as long as we
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_formatter(process, config, _look(config, fd)))
    handlers: list[logging.Handler] = [handler]
    if config.file:
        # Every process of the pool appends to it: a line is one write.
        try:
            handlers.append(logging.FileHandler(Path(config.file), encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot write log file {config.file}: {error.strerror}") from error
        handlers[-1].setFormatter(_formatter(process, config, "plain"))
    root = logging.getLogger()
    root.handlers[:] = handlers
    root.setLevel(_LEVELS.get(config.verbosity, logging.DEBUG))


def _own_fd() -> int | None:
    """Return the descriptor that our supervisor made for our lines; None if there is none."""
    try:
        fd = int(os.environ.get(LOG_FD_VARIABLE, ""))
        os.fstat(fd)
    except (ValueError, OSError):
        return None
    return fd


def _look(config: LogConfig, fd: int) -> str:
    if is_journal(fd):
        return "journal"
    is_colored = config.colors == "on" or (config.colors == "auto" and sys.stderr.isatty())
    return "color" if is_colored else "plain"


def _formatter(process: str, config: LogConfig, look: str) -> logging.Formatter:
    return _Objects(process) if config.format == "json" else _Lines(process, config, look=look)


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
