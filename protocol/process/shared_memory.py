"""Memory that another process of the same host and user can read, also after its owner's death.

It has no name in any folder: a reader opens it under `/proc` by process id and descriptor. Its size
is sealed, so that reading it neither waits for a disk nor faults.
"""

import fcntl
import mmap
import os
from pathlib import Path

_NAME = "llamapool-accounts"
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def make_shared(n_bytes: int) -> tuple[int, memoryview]:
    """Make memory of zeros; returns its descriptor and the memory. Raises `OSError`."""
    fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, n_bytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd, memoryview(mmap.mmap(fd, n_bytes))


def open_shared(pid: int, fd: int, n_bytes: int) -> memoryview | None:
    """Open memory that another process has made; None if this process cannot, or it is not such.

    Never blocks, whatever the descriptor is.
    """
    path = Path(f"/proc/{pid}/fd/{fd}")
    try:
        if not str(path.readlink()).startswith(f"/memfd:{_NAME} "):
            return None
        own = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        if fcntl.fcntl(own, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            return None
        if os.fstat(own).st_size != n_bytes:
            return None
        return memoryview(mmap.mmap(own, n_bytes, access=mmap.ACCESS_READ))
    except OSError:
        return None
    finally:
        os.close(own)
