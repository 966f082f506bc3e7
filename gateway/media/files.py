"""`file://` URLs: files below one folder, llama-server's `--media-path`."""

import os
import stat
from pathlib import Path

SCHEME = "file://"


def read_file(folder: Path, url: str, max_bytes: int) -> bytes:
    """Return a file of the folder; raises ValueError with the reason, in llama-server's words.

    Symbolic links are resolved first: the file itself must be inside of the folder. A name is
    always below the folder, also one that begins with slashes.
    """
    name = url.removeprefix(SCHEME)
    relative = name.lstrip("/")
    if not relative or len(name) > 255 or not name.isprintable():
        raise ValueError(f"file path is not allowed: {name[:255]}")
    try:
        path = (folder / relative).resolve(strict=True)
        if not path.is_relative_to(folder.resolve()):
            raise ValueError(f"file path is not allowed: {name}")
        return _read(path, name, max_bytes)
    except (OSError, RuntimeError) as error:
        problem = f"file does not exist or cannot be opened: {name}"
        raise ValueError(problem) from error


def _read(path: Path, name: str, max_bytes: int) -> bytes:
    # Non-blocking: opening a named pipe would block the thread until somebody writes to it.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"file does not exist or cannot be opened: {name}")
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"the file is larger than {max_bytes >> 20} MiB")
    return data
