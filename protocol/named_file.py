"""Reads files that a command line or a configuration names, within a bound of bytes and time.

Such a name may lead to anything: a folder, a pipe to which nobody writes, an endless device. A pipe
that ends is read, because shells make one of `<(COMMAND)`.
"""

import errno
import os
import select
import stat
import time
from pathlib import Path

MAX_TEXT_BYTES = 16 << 20
"""Of a text: a configuration, a preset file, a template, a grammar, a schema."""
_PIPE_LIMIT_S = 30.0
"""Seconds within which somebody must write a pipe to its end."""
_CHUNK = 1 << 20
"""Bytes read at once."""


def read_named_bytes(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Read a file to its end; raises `OSError` with the reason as `strerror`."""
    # Non-blocking: opening a pipe would wait until somebody writes to it.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(fd)
        is_file = stat.S_ISREG(found.st_mode)
        if is_file and found.st_size > max_bytes:
            raise _too_large(max_bytes)
        data = _to_the_end(fd, max_bytes + 1, None if is_file else time.monotonic() + _PIPE_LIMIT_S)
        if len(data) > max_bytes:
            raise _too_large(max_bytes)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(fd)
    return data


def read_named_text(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Read a text; raises `OSError` as `read_named_bytes` does, also where it is no UTF-8.

    A byte order mark, which editors of Windows write first, is left out.
    """
    data = read_named_bytes(path, max_bytes)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, f"it is no UTF-8 text: {error}", str(path)) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _to_the_end(fd: int, limit: int, deadline: float | None) -> bytes:
    data = bytearray()
    while len(data) < limit:
        try:
            chunk = os.read(fd, min(_CHUNK, limit - len(data)))
        except BlockingIOError:
            _wait(fd, deadline)
            continue
        if chunk:
            data += chunk
        elif data or deadline is None or _is_over(fd):
            break
        else:
            _wait(fd, deadline)  # a pipe that nobody has opened for writing yet
    return bytes(data)


def _is_over(fd: int) -> bool:
    """Whether everybody who had a pipe open for writing has closed it."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _wait(fd: int, deadline: float | None) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    left_s = 0.0 if deadline is None else deadline - time.monotonic()
    if left_s <= 0 or not poll.poll(left_s * 1000):
        message = f"it is a pipe that nobody has written to its end in {_PIPE_LIMIT_S:g} s"
        raise OSError(errno.ETIMEDOUT, message)


def _too_large(n_bytes: int) -> OSError:
    size = f"{n_bytes >> 20} MiB" if n_bytes >= 1 << 20 else f"{n_bytes >> 10} KiB"
    return OSError(errno.EFBIG, f"it has more than {size}")
