"""The usage log of one gateway: files of JSON lines, a new one each day and when one is full."""

import os
import time
from pathlib import Path

from gateway.usage.entry import usage_day

PATTERN = "usage-*.jsonl"


class UsageLog:
    """Appends to the newest file. Every method may raise `OSError`; nothing is then half written.

    Each process has files of its own, named by day, process and number.
    """

    def __init__(self, folder: Path, name: str, *, max_bytes: int, fsync_s: float) -> None:
        """`fsync_s`: maximum seconds until a line is on the disk; 0 is at once, below 0 never."""
        self._folder = folder
        self._name = name
        self._max_bytes = max_bytes
        self._fsync_s = fsync_s
        self._fd = -1
        self._day = ""
        self._n_files = 0
        self._n_bytes = 0
        self._unsynced_since: float | None = None
        self.path = folder
        """The newest file; the folder before there is one."""

    @property
    def wants_sync(self) -> bool:
        """Whether lines are to be brought to the disk."""
        return self._unsynced_since is not None and self._fsync_s >= 0

    def append(self, data: bytes) -> None:
        """Write whole lines, all or none."""
        if self._fd < 0 or self._day != usage_day(time.time()) or self._is_full(len(data)):
            self._begin()
        elif not os.fstat(self._fd).st_nlink:
            self._begin()  # somebody has removed the file, and what is written to it is lost
        try:
            written = 0
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            self._take_back()
            raise
        self._n_bytes += len(data)
        if self._unsynced_since is None:
            self._unsynced_since = time.monotonic()

    def sync(self, *, now: bool = False) -> None:
        """Flush to the disk, if the interval is over."""
        since = self._unsynced_since
        if since is None or self._fsync_s < 0:
            return
        if now or time.monotonic() - since >= self._fsync_s:
            os.fsync(self._fd)
            self._unsynced_since = None

    def close(self) -> None:
        """End the file; idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                if self._unsynced_since is not None and self._fsync_s >= 0:
                    os.fsync(fd)
            finally:
                self._unsynced_since = None
                os.close(fd)

    def _is_full(self, n: int) -> bool:
        return 0 < self._max_bytes < self._n_bytes + n and self._n_bytes > 0

    def _begin(self) -> None:
        self.close()
        self._day = usage_day(time.time())
        self._n_files += 1
        path = self._folder / f"usage-{self._day}-{self._name}-{self._n_files}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        self.path, self._n_bytes = path, 0

    def _take_back(self) -> None:
        """Cut a line that was written in part; where that fails, the next line gets a new file."""
        try:
            os.ftruncate(self._fd, self._n_bytes)
        except OSError:
            fd, self._fd = self._fd, -1
            os.close(fd)
