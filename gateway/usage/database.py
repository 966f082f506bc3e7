"""Sums of the usage by day, key and model, in SQLite: made from the log, for questions.

The log is what counts. How far each of its files is taken in stands in the same transaction as the
sums, so that a line counts once, whichever process takes it in, and nothing is lost by a crash: who
starts next takes in the rest. Questions read the rest themselves, so that a database which another
program has locked lacks nothing. Without the database it is made anew from the log.
"""

import contextlib
import errno
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from gateway.usage.entry import COUNTS, Tokens, UsageEntry, read_entry
from gateway.usage.log_file import PATTERN
from protocol.errors import ConfigError

logger = logging.getLogger(__name__)

DATABASE = "usage.sqlite"
GROUPS = ("key", "model", "day")
"""What answers can be grouped by."""
MAX_ROWS = 10_000
"""Sums of one answer; a question with more is refused."""

_VERSION = 1
"""Of the tables; a database of a newer one is not opened."""
_CHUNK = 4 * 1024 * 1024
"""Bytes of the log that one transaction takes in."""
_BUSY_S = 10.0
"""Seconds that a writer waits for another process."""
_READER_BUSY_S = 2.0
"""Seconds that a question waits. Source: someone waits for the answer, and may ask again."""

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, key TEXT NOT NULL, tenant TEXT NOT NULL, model TEXT NOT NULL,
    {", ".join(f"{name} INTEGER NOT NULL" for name in COUNTS)},
    PRIMARY KEY (day, key, tenant, model)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, n_bytes INTEGER NOT NULL) WITHOUT ROWID;
PRAGMA user_version = {_VERSION};
"""
_ADD = f"""
INSERT INTO usage (day, key, tenant, model, {", ".join(COUNTS)})
VALUES (?, ?, ?, ?, {", ".join("?" * len(COUNTS))})
ON CONFLICT DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTS)}
"""  # noqa: S608 - made of this file's own names
_NOTE = "INSERT INTO files VALUES (?, ?) ON CONFLICT DO UPDATE SET n_bytes = excluded.n_bytes"


class UsageDatabase:
    """The database of one folder, for the thread that writes. Methods raise `sqlite3.Error`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    @property
    def is_gone(self) -> bool:
        """Whether the file that is open has been removed, or replaced by another."""
        try:
            return (self._folder / DATABASE).stat().st_ino != self._inode
        except FileNotFoundError:
            return True

    def open(self) -> None:
        """Open or make it; raises `ConfigError`, or `sqlite3.Error` if a later try may succeed."""
        path = self._folder / DATABASE
        _make_private(path)
        try:
            connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
            self._connection = connection
            connection.execute("PRAGMA journal_mode = WAL")
            # A power cut may undo the last transactions; they are made again from the log.
            connection.execute("PRAGMA synchronous = NORMAL")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > _VERSION:
                self.close()
                raise ConfigError(f"{path}: a newer llamapool has made this database")
            connection.executescript(_SCHEMA)
            self._inode = path.stat().st_ino
        except sqlite3.Error as error:
            self.close()
            if will_pass(error):
                raise
            raise ConfigError(
                f"{path}: {error}; without it the database is made anew from the usage-*.jsonl"
            ) from error

    def close(self) -> None:
        """Close it; idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def take_in(self, path: Path) -> None:
        """Add the whole lines of a file of the log that do not count yet; raises `OSError` too.

        A file that is gone is left out: another gateway has taken it in and removed it.
        """
        with contextlib.suppress(FileNotFoundError):
            while self._take_chunk(path):
                pass

    def _take_chunk(self, path: Path) -> bool:
        """Take in some lines; return whether there may be more."""
        connection = self._connection
        assert connection is not None
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            row = connection.execute(
                "SELECT n_bytes FROM files WHERE name = ?", (path.name,)
            ).fetchone()
            start: int = row[0] if row else 0
            with path.open("rb") as file:
                file.seek(start)
                data = file.read(_CHUNK)
            n = data.rfind(b"\n") + 1
            if n:
                connection.executemany(_ADD, _sums(data[:n], path.name))
                connection.execute(_NOTE, (path.name, start + n))
        return n > 0 and len(data) == _CHUNK

    def is_taken_in(self, path: Path) -> bool:
        """Whether all of a file counts."""
        assert self._connection is not None
        query = "SELECT n_bytes FROM files WHERE name = ?"
        row = self._connection.execute(query, (path.name,)).fetchone()
        return bool(row) and row[0] >= path.stat().st_size

    def forget(self, name: str) -> None:
        """Forget a file that was removed; its sums stay."""
        assert self._connection is not None
        self._connection.execute("DELETE FROM files WHERE name = ?", (name,))


def _sums(data: bytes, name: str) -> list[tuple[object, ...]]:
    """Add up lines by their group; one that cannot be read is logged and left out."""
    sums: dict[tuple[str, ...], Tokens] = {}
    for line in data.splitlines():
        try:
            entry = read_entry(line)
        except ValueError as error:
            logger.error(
                "usage line unreadable",
                extra={"file": name, "cause": error, "action": "the line is left out"},
            )
            continue
        sums[entry.group] = sums.get(entry.group, Tokens()).plus(entry.tokens)
    return [(*group, *counts(tokens)) for group, tokens in sums.items()]


_PASSING = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _make_private(path: Path) -> None:
    """Make a new file that its owner alone may read; SQLite gives the files beside it its mode."""
    with contextlib.suppress(OSError):  # SQLite tells the cause
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def will_pass(error: Exception) -> bool:
    """Return whether a later try may succeed: a full or failing disk, another program's lock."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def counts(tokens: Tokens) -> tuple[int, ...]:
    """Return the counts in the order of `COUNTS`."""
    return tuple(getattr(tokens, name) for name in COUNTS)


def ask(
    folder: Path, by: Sequence[str], where: Mapping[str, str], first: str = "", last: str = ""
) -> dict[tuple[str, ...], Tokens]:
    """Return sums by `by`, names of `GROUPS`, of the days from `first` to `last`, both included.

    `where` bounds them to a key or a model. At most one more than `MAX_ROWS` are returned of those
    in the database. Raises `sqlite3.Error`.
    """
    assert not set(by) - set(GROUPS) and not set(where) - set(GROUPS)
    tests = [f"{name} = ?" for name in where]
    values = list(where.values())
    for test, day in (("day >= ?", first), ("day <= ?", last)):
        if day:
            tests.append(test)
            values.append(day)
    columns = [*by, *(f"SUM({name})" for name in COUNTS)]
    query = f"SELECT {', '.join(columns)} FROM usage"  # noqa: S608 - values are parameters
    query += f" WHERE {' AND '.join(tests)}" if tests else ""
    query += f" GROUP BY {', '.join(by)} ORDER BY {', '.join(by)}" if by else ""
    query += f" LIMIT {MAX_ROWS + 1}"
    with contextlib.closing(_reader(folder)) as connection:
        connection.execute("BEGIN")  # one view of the database for both
        rows = connection.execute(query, values).fetchall()
        rest = unwritten(_rest(connection, folder), by, where, first, last)
    n = len(by)
    found = {
        row[:n]: Tokens(**dict(zip(COUNTS, row[n:], strict=True)))
        for row in rows
        if row[n] is not None  # the sum of no rows
    }
    for group, tokens in rest.items():
        found[group] = found.get(group, Tokens()).plus(tokens)
    return found


def _rest(connection: sqlite3.Connection, folder: Path) -> Iterator[UsageEntry]:
    """Yield the entries of the log that the database lacks; raises `sqlite3.Error`."""
    taken = dict(connection.execute("SELECT name, n_bytes FROM files"))
    for path in folder.glob(PATTERN):
        start = taken.get(path.name, 0)
        try:
            if path.stat().st_size > start:
                with path.open("rb") as file:
                    file.seek(start)
                    yield from _whole_entries(file)
        except FileNotFoundError:
            continue  # another gateway has taken it in and removed it
        except OSError as error:
            raise sqlite3.OperationalError(f"{path.name}: {error.strerror}") from error


def _whole_entries(lines: Iterable[bytes]) -> Iterator[UsageEntry]:
    """Read lines; one that cannot be read is left out here, and logged when it is taken in."""
    for line in lines:
        if line.endswith(b"\n"):
            with contextlib.suppress(ValueError):
                yield read_entry(line)


def spent_on(folder: Path, day: str) -> dict[str, Tokens]:
    """Return what each key has used on a day; empty where there is no database."""
    try:
        found = ask(folder, ("key",), {"day": day})
    except sqlite3.Error:
        return {}
    return {key: tokens for (key,), tokens in found.items()}


def _reader(folder: Path) -> sqlite3.Connection:
    path = quote(os.fsencode(folder / DATABASE))
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=_READER_BUSY_S)


def unwritten(
    entries: Iterable[UsageEntry],
    by: Sequence[str],
    where: Mapping[str, str],
    first: str = "",
    last: str = "",
) -> dict[tuple[str, ...], Tokens]:
    """Answer as `ask` does for entries that are not in the database yet."""
    found: dict[tuple[str, ...], Tokens] = {}
    for entry in entries:
        day, key, _, model = entry.group
        values = {"key": key, "model": model, "day": day}
        is_meant = all(values[name] == value for name, value in where.items())
        if is_meant and (first or day) <= day <= (last or day):
            group = tuple(values[name] for name in by)
            found[group] = found.get(group, Tokens()).plus(entry.tokens)
    return found
