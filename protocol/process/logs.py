"""Logging of every process: one line per event, to standard error and to a file if one is named.

A call names the event and passes all values as fields (those of docs/running/logs.md):

    logger.warning("worker lost", extra={"worker": name, "cause": cause})

As text: `2026-11-21T07:40:01.123Z WARNING gateway.pool.task_transport worker lost worker=w1`, with
values in double quotes where they hold spaces, quotes, `=` or control characters. Under the journal
the time is left out and the level is written as a priority prefix. With `json` each line is an
object: time, level, process, logger, event, then the fields.

A child of the supervisor writes its log to a pipe of its own (`LOG_FD_VARIABLE`). So nothing that a
library prints to the child's standard error can be mistaken for a log line.
"""

import json as json_module
import logging
import math
import os
import re
import sys
import time
from typing import Protocol, TextIO

from protocol.config.config import LogConfig
from protocol.errors import ConfigError
from protocol.process.log_file import LogFile
from protocol.process.log_stream import LogStream

STDERR = 2
"""The descriptor of standard error."""
LOG_FD_VARIABLE = "LLAMAPOOL_LOG_FD"
"""Environment variable of a child that holds the number of its descriptor for log lines."""

_PRIORITY = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_COLORS = ((logging.ERROR, "31"), (logging.WARNING, "33"))
_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 0: logging.INFO, 3: logging.INFO}
"""llama-server's levels of `--verbosity`; 0 was its default until 2024."""

RECORD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that `logging` itself sets on a record; every other one is a field of ours."""
FieldValue = str | int | float | list[str]
_QUOTED = re.compile(r"[\s\"=]")
_DECIMALS = 4
"""Of times in seconds: a tenth of a millisecond."""


class Writable(Protocol):
    """Destination of log lines, such as a text file."""

    def write(self, text: str, /) -> object:
        """Write text."""

    def flush(self) -> object:
        """Write what is buffered."""


class _TextFormatter(logging.Formatter):
    """Write `time LEVEL logger event key=value ...`.

    `process` is written before the logger's name unless that name begins with it.
    """

    def __init__(self, process: str, config: LogConfig, *, look: str) -> None:
        super().__init__()
        self._process = process
        self._config = config
        self._look = look

    def format(self, record: logging.LogRecord) -> str:
        text = event_text(record)
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            text += "".join(f"\n    {one_line(line)}" for line in trace.split("\n"))
        name = record.name
        if name != self._process and not name.startswith(f"{self._process}."):
            name = f"{self._process} {name}"
        if self._look == "journal":
            priority = next((p for level, p in _PRIORITY if record.levelno >= level), 7)
            return f"<{priority}>{name} {text}"
        words = [text]
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


class _JsonFormatter(logging.Formatter):
    """Write each record as one JSON object on one line."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "event": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json_module.dumps(line)


def fields_of(record: logging.LogRecord) -> dict[str, FieldValue]:
    """Return the fields of a record, ready for JSON; a field whose value is None is left out."""
    return {
        name: _plain(value)
        for name, value in vars(record).items()
        if name not in RECORD_ATTRIBUTES and value is not None
    }


def _plain(value: object) -> FieldValue:
    if isinstance(value, bool) or type(value) is int:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return round(value, _DECIMALS)
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return str(value)


def event_text(record: logging.LogRecord) -> str:
    """Write the event and the fields of a record as one line without time, level and logger."""
    pairs = (f"{name}={_text(value)}" for name, value in fields_of(record).items())
    return " ".join((one_line(record.getMessage()), *pairs))


def _text(value: FieldValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.{_DECIMALS}f}".rstrip("0").rstrip(".")
    text = ",".join(value) if isinstance(value, list) else str(value)
    if text.isprintable() and text and not _QUOTED.search(text):
        return text
    return one_line(json_module.dumps(text, ensure_ascii=False))


def one_line(text: str) -> str:
    """Escape line ends and control characters, so that no text can forge a log line."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    return char if char.isprintable() or char == "\t" else ascii(char)[1:-1]


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def configure(
    process: str, config: LogConfig | None = None, *, stream: Writable | None = None
) -> None:
    """Send the log of this process to stderr, or to `stream`; replaces any earlier configuration.

    Raises `ConfigError` if the file that the configuration names cannot be written.
    """
    config = config or LogConfig()
    fd = STDERR
    if stream is None:
        own = _own_fd()
        fd = STDERR if own is None else own
        stream = sys.stderr if own is None and _is_replaced(sys.stderr) else LogStream(fd)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_formatter(process, config, _look(config, fd)))
    handlers: list[logging.Handler] = [handler]
    if config.file:
        try:
            handlers.append(LogFile(config.file))
        except OSError as error:
            raise ConfigError(f"cannot write log file {config.file}: {error.strerror}") from error
        handlers[-1].setFormatter(_formatter(process, config, "plain"))
    root = logging.getLogger()
    root.handlers[:] = handlers
    root.setLevel(_LEVELS.get(config.verbosity, logging.DEBUG))


def _is_replaced(stream: TextIO | None) -> bool:
    """Whether standard error is no descriptor 2 any more, as in a test that captures it."""
    try:
        return stream is not None and stream.fileno() != STDERR
    except OSError:
        return True


def _own_fd() -> int | None:
    """Return the descriptor that the supervisor opened for this process's log, or None."""
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
    return (
        _JsonFormatter(process)
        if config.format == "json"
        else _TextFormatter(process, config, look=look)
    )


def is_journal(fd: int) -> bool:
    """Return whether a descriptor is the one that `JOURNAL_STREAM` names.

    That the variable is set is not enough: terminals of a desktop session inherit it too.
    """
    try:
        return os.environ.get("JOURNAL_STREAM", "") == stream_id(fd)
    except OSError:
        return False


def stream_id(fd: int) -> str:
    """Return `device:inode` of a descriptor, the format of `JOURNAL_STREAM`."""
    stat = os.fstat(fd)
    return f"{stat.st_dev}:{stat.st_ino}"
