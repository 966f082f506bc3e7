"""Writes usage from the event loop to the disk, in its own thread.

`put` appends to a queue and never waits. What cannot be written is kept in memory as sums by day,
key and model, whose number is bounded, and is written as soon as that is possible again; no request
fails for it.
"""

import contextlib
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path

from gateway.usage.database import UsageDatabase, will_pass
from gateway.usage.entry import UsageEntry
from gateway.usage.log_file import PATTERN, UsageLog
from protocol.config.usage_config import UsageConfig
from protocol.errors import ConfigError
from protocol.process.log_pause import LogPause

logger = logging.getLogger(__name__)

MAX_QUEUED = 50_000
"""Entries that wait for the thread; beyond, they are added up at once."""
MAX_SUMS = 10_000
"""Sums that are kept while nothing can be written; what goes beyond is kept without its key."""

_GATHER_S = 0.05
"""Entries that come so soon after one another are written together."""
_RETRY_S = 5.0
"""Pause after a write that failed."""
_REST_S = 2.0
"""How long a question waits for what is being written."""
_CLOSE_S = 5.0
"""How long the end of the process waits for the last write."""
_DAY_S = 86_400
_STEP_S = 3600.0
"""Seconds by which the clock must be set for old files to be kept until the next day."""
_LOST = "(beyond the bound)"


class UsageRecorder:
    """Writes the log and the database of one folder. `put` and `flush` belong to the loop."""

    def __init__(self, folder: Path, config: UsageConfig, name: str) -> None:
        """`name` tells the files of this process from those of others, also of earlier ones."""
        self.folder = folder
        self._config = config
        self._log = UsageLog(folder, name, max_bytes=config.max_mib << 20, fsync_s=config.fsync_s)
        self._database = UsageDatabase(folder)
        self._lock = threading.Condition()
        self._moving = threading.Lock()
        """Held while entries are on their way from memory to the database."""
        self._queue: deque[UsageEntry] = deque()
        self._kept: dict[tuple[str, ...], UsageEntry] = {}
        """Sums of what could not be written."""
        self._waiters: list[Future[None]] = []
        self._is_closing = False
        self._is_failing = False
        self._is_told = False
        """Whether the log has the failure that goes on."""
        self._pause = LogPause()
        """On a disk that is nearly full some writes fit, so that failures come and go."""
        self._is_log_failing = False
        self._behind: set[Path] = set()
        """Files of this process of which the database may lack lines."""
        self._knows_others = False
        """Whether the database has taken in the files that other processes left."""
        self._swept_on = 0
        self._clock_offset = time.time() - time.monotonic()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    def open(self) -> None:
        """Make the folder and the database, take in what others left; raises `ConfigError`.

        Blocks as long as the disk does. An error that may pass, such as a full disk, does not end
        the start: the thread tries again.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_in()
        except (OSError, sqlite3.Error) as error:
            if not will_pass(error) or not self.folder.is_dir():
                raise ConfigError(f"usage.dir {self.folder}: {error}") from error
            self._fails(error)
        finally:
            self._database.close()  # a connection belongs to its thread
        self._thread.start()

    def put(self, entry: UsageEntry) -> None:
        """Count a request. Never waits for the disk."""
        with self._lock:
            if len(self._queue) < MAX_QUEUED:
                self._queue.append(entry)
            else:
                self._keep([entry])
            self._lock.notify()

    def flush(self) -> "Future[None]":
        """Return a future that is done when all that was put before is written, or has failed."""
        waiter: Future[None] = Future()
        waiter.set_running_or_notify_cancel()  # so that who gives up waiting cannot cancel it
        with self._lock:
            if self._is_closing or not self._thread.is_alive():
                waiter.set_result(None)
            else:
                self._waiters.append(waiter)
                self._lock.notify()
        return waiter

    def unwritten(self) -> list[UsageEntry]:
        """List what is not on the disk: entries, or sums of them."""
        with self._lock:
            return [*self._kept.values(), *self._queue]

    @property
    def is_failing(self) -> bool:
        """Whether the log could not be written to, so that what was put is in memory only."""
        return self._is_log_failing

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[None]:
        """Let no entry go from memory to the database while the block runs, which counts both.

        Without effect if the disk is so slow that what is being written takes too long.
        """
        is_held = self._moving.acquire(timeout=_REST_S)
        try:
            yield
        finally:
            if is_held:
                self._moving.release()

    def close(self) -> None:
        """Write the rest and end the thread; blocks for that."""
        with self._lock:
            self._is_closing = True
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
        if left := self.unwritten():
            n = sum(record.tokens.requests for record in left)
            logger.error(
                "usage lost",
                extra={
                    "n_requests": n,
                    "cause": "it could not be written",
                    "action": "these requests are missing in the usage",
                    "hint": "the lines 'request done' of the log have their tokens",
                },
            )

    # ---- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        is_closing = False
        while not is_closing:
            with self._lock:
                if not (self._queue or self._waiters or self._is_closing):
                    self._lock.wait(self._pause_s())
                is_hurried = bool(self._waiters or self._is_closing)
            if not is_hurried:
                time.sleep(_GATHER_S)
            with self._lock:
                is_closing = self._is_closing
                waiters, self._waiters = self._waiters, []
            self._turn(is_closing=is_closing)
            for waiter in waiters:
                waiter.set_result(None)
        self._end()

    def _pause_s(self) -> float | None:
        """Return how long to wait for entries: until a sync or another attempt is due."""
        if self._is_failing or self._behind or not self._knows_others:
            return _RETRY_S
        return max(_GATHER_S, self._config.fsync_s) if self._log.wants_sync else None

    def _turn(self, *, is_closing: bool) -> None:
        with self._moving:
            self._write(is_closing=is_closing)

    def _write(self, *, is_closing: bool) -> None:
        """Write what there is; whatever goes wrong, the entries are kept."""
        with self._lock:
            entries = [*self._kept.values(), *self._queue]
            self._kept = {}
            self._queue.clear()
        try:
            if entries:
                self._log.append(b"".join([entry.line() for entry in entries]))
                entries = []
                self._is_log_failing = False
                self._behind.add(self._log.path)
            self._log.sync(now=is_closing)
        except Exception as error:
            self._is_log_failing = bool(entries)
            sums = _sums(entries)  # before the loop has to wait for the lock
            with self._lock:
                self._keep(sums)
            self._fails(error)
            return
        try:
            self._take_in()
        except Exception as error:
            self._database.close()
            self._fails(error)
            return
        self._is_failing = False
        if self._is_told:
            self._is_told = False
            logger.info("usage written again", extra={"file": self._log.path})

    def _take_in(self) -> None:
        """Bring the database up to the log; once a day remove old files."""
        if self._database.is_open and self._database.is_gone:
            self._database.close()
        if not self._database.is_open:
            self._database.open()
            self._knows_others = False  # it may be a new one, which lacks all files
        if not self._knows_others:
            for path in sorted(self.folder.glob(PATTERN)):
                self._database.take_in(path)
            self._knows_others = True
        for path in sorted(self._behind):
            self._database.take_in(path)
            self._behind.discard(path)
        today = int(time.time()) // _DAY_S
        if today != self._swept_on:
            self._swept_on = today
            if not self._clock_was_set():
                self._sweep()

    def _clock_was_set(self) -> bool:
        """Return whether the system's clock was set since the last look: it may be wrong, then."""
        before, self._clock_offset = self._clock_offset, time.time() - time.monotonic()
        return abs(self._clock_offset - before) > _STEP_S

    def _sweep(self) -> None:
        """Remove files that are older than `keep_days`, once their lines count."""
        if not self._config.keep_days:
            return
        limit = time.time() - self._config.keep_days * _DAY_S
        for path in self.folder.glob(PATTERN):
            with contextlib.suppress(FileNotFoundError):  # another gateway has removed it
                if path != self._log.path and path.stat().st_mtime < limit:
                    self._database.take_in(path)
                    if self._database.is_taken_in(path):
                        path.unlink()
                        self._database.forget(path.name)

    def _keep(self, entries: Iterable[UsageEntry]) -> None:
        """Add entries to the sums; the lock is held."""
        for entry in entries:
            record = entry
            if record.group not in self._kept and len(self._kept) >= MAX_SUMS:
                record = UsageEntry(time=record.time, key=_LOST, tokens=record.tokens)
            _add(self._kept, record)

    def _fails(self, error: Exception) -> None:
        self._is_failing = True
        if not self._is_told and self._pause.take_turn():
            self._is_told = True
            logger.error(
                "usage not written",
                extra={
                    "file": self._log.path,
                    "cause": error,
                    "action": "what the log lacks is kept in memory as sums; it is tried again",
                    "hint": "is the disk full? may this user write there?",
                },
            )

    def _end(self) -> None:
        try:
            self._log.close()
        except OSError as error:
            self._fails(error)
        self._database.close()


def _sums(entries: Iterable[UsageEntry]) -> list[UsageEntry]:
    """Add entries up by their groups."""
    sums: dict[tuple[str, ...], UsageEntry] = {}
    for entry in entries:
        _add(sums, entry)
    return list(sums.values())


def _add(sums: dict[tuple[str, ...], UsageEntry], entry: UsageEntry) -> None:
    before = sums.get(entry.group)
    sums[entry.group] = entry.merged(before) if before is not None else entry
