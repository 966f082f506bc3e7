"""Changes a key file: adds a key, takes one out, and leaves every other line as it is."""

import contextlib
import datetime as dt
import errno
import fcntl
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gateway.keys.api_key import ApiKey, KeyLimits, PriorityClass
from gateway.keys.parse import HEADER, KeyFileError, parse_keys
from protocol.named_file import read_named_text

_MODE = 0o600
"""Of a new key file: only its owner may read it."""
LOCK_WAIT_S = 10.0
"""Longest wait for a lock. Source: a command holds it for the time of two writes to a disk."""
_LOCK_PAUSE_S = 0.02
"""Pause between two attempts to get the lock."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other commands from changing a file of this folder; raises OSError.

    Whoever may read the folder may lock it, so that the wait has an end.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(folder, time.monotonic() + LOCK_WAIT_S)
        yield
    finally:
        os.close(folder)


def _lock(folder: int, until: float) -> None:
    while True:
        try:
            return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                cause = "another program holds a lock of its folder; `lslocks` names it"
                raise BlockingIOError(errno.EWOULDBLOCK, cause) from None
            time.sleep(_LOCK_PAUSE_S)


def read_text(path: Path) -> str:
    """Read a key file; empty if there is none. Raises OSError, `KeyFileError`."""
    try:
        text = read_named_text(path)
    except FileNotFoundError:
        return ""
    if parse_keys(text) and not HEADER.search(text):
        raise KeyFileError("has one key a line: edit it by hand, or begin a new file")
    return text


def with_key(text: str, key: ApiKey) -> str:
    """Add a key at the end; raises `KeyFileError` if its name is taken."""
    if any(existing.name == key.name for existing in parse_keys(text)):
        raise KeyFileError(f"there is a key '{key.name}' already; revoke it first")
    gap = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
    changed = f"{text}{gap}{table(key)}"
    assert parse_keys(changed)[-1] == key
    return changed


def without_key(text: str, name: str) -> str:
    """Take out a key with its table; raises `KeyFileError` if there is none of that name."""
    keys = parse_keys(text)
    kept = tuple(key for key in keys if key.name != name)
    if len(kept) == len(keys):
        raise KeyFileError(f"there is no key '{name}'")
    starts = [match.start() for match in HEADER.finditer(text)]
    i = next(i for i, key in enumerate(keys) if key.name == name)
    if len(starts) != len(keys):
        raise KeyFileError("its tables are not written as [[key]]: edit it by hand")
    end = [*starts, len(text)][i + 1]
    changed = text[: starts[i]] + _comments_before_next(text[starts[i] : end]) + text[end:]
    if parse_keys(changed) != kept:
        raise KeyFileError("its tables cannot be told apart: edit it by hand")
    return changed


def _comments_before_next(block: str) -> str:
    """Return the comment lines at the end of a table, which belong to the table that follows."""
    lines = block.splitlines(keepends=True)
    n = len(lines)
    while n and lines[n - 1].lstrip().startswith("#"):
        n -= 1
    return "".join(lines[n:])


def table(key: ApiKey) -> str:
    """Write a key as a table."""
    limits, default = key.limits, KeyLimits()
    fields: dict[str, str] = {
        "name": json.dumps(key.name),
        "sha256": json.dumps(key.digests[0].hex()),
        "scopes": json.dumps(sorted(key.scopes)),
    }
    if key.models:
        fields["models"] = json.dumps(list(key.models), ensure_ascii=False)
    if limits.priority is not PriorityClass.NORMAL:
        fields["priority"] = json.dumps(limits.priority.name.lower())
    for name in ("concurrent", "requests_per_minute", "tokens_per_minute", "tokens_per_day"):
        if getattr(limits, name) != getattr(default, name):
            fields[name] = str(getattr(limits, name))
    if not math.isinf(key.expires_at):
        moment = dt.datetime.fromtimestamp(key.expires_at, dt.UTC)
        fields["expires"] = moment.isoformat().replace("+00:00", "Z")
    return "".join(["[[key]]\n", *(f"{name} = {value}\n" for name, value in fields.items())])


def write(path: Path, text: str) -> None:
    """Replace a file in one step; a new one is for its owner only. Raises OSError."""
    path = path.resolve()
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            _take_after(fd, path)
            file.write(text)
            file.flush()
            os.fsync(fd)
        Path(temporary).rename(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _take_after(fd: int, path: Path) -> None:
    """Give a file the owner and mode of the one that it replaces."""
    os.fchmod(fd, _MODE)
    with contextlib.suppress(FileNotFoundError):
        old = path.stat()
        if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(fd, old.st_uid, old.st_gid)
        os.fchmod(fd, old.st_mode & 0o777)
