"""Makes the runtime directory: sockets and the resolved configuration, readable by the user only.

A created directory contains a file that its process keeps locked. The kernel releases the lock when
the process ends, so the next start can find and remove directories of killed processes.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from protocol.endpoint import check_folder
from protocol.errors import ConfigError
from protocol.filenames import expanded

PREFIX = "llamapool-"
_LOCK = "lock"
_HALF_MADE_S = 60.0
"""Age of a directory without a lock beyond which nobody is about to make one: it takes 1 ms."""
_LONGEST = 64
"""Bytes of a folder's path that leave room for `llamapool-xxxxxxxx/` and a socket's name."""


def parents() -> list[Path]:
    """List the folders in which runtime directories are made, the preferred one first.

    A long TMPDIR, such as that of a batch system, is left out: the path of a socket has a limit.
    """
    named = (os.environ.get("XDG_RUNTIME_DIR", ""), _temporary(), "/tmp")  # noqa: S108 - for a private folder in it
    short = [name for name in named if name and len(os.fsencode(name)) <= _LONGEST]
    return [Path(name) for name in dict.fromkeys(short)]


def _temporary() -> str:
    """Return the folder for temporary files; "" if none can be written."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return ""


def parent() -> Path:
    """Return the folder in which the next runtime directory is made."""
    return next((folder for folder in parents() if os.access(folder, os.W_OK)), parents()[-1])


@contextlib.contextmanager
def runtime_directory(configured: str) -> Iterator[Path]:
    """Make a private directory and remove it at the end; a configured one keeps its other files."""
    with contextlib.ExitStack() as stack:
        try:
            path = stack.enter_context(_configured(configured) if configured else _new())
        except OSError as error:
            what = f"runtime_dir {configured}" if configured else "a runtime directory"
            remedy = "name a folder that can be written with runtime_dir or TMPDIR"
            raise ConfigError(f"cannot make {what}: {error}; {remedy}") from error
        yield path


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a folder against another pool; raises `ConfigError` if one has it.

    And against systemd-tmpfiles, which removes files that are ten days old, but not in a folder
    that is locked.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"runtime_dir {path} is that of a pool that runs: name another folder"
            raise ConfigError(message) from error
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _new() -> Iterator[Path]:
    folder = parent()
    _sweep(folder)
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
    # Renamed only when locked, so an unlocked file means that its owner has ended.
    with _locked(path), (path / f"{_LOCK}.new").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (path / f"{_LOCK}.new").rename(path / _LOCK)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove the directories of killed processes."""
    for path in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if _is_half_made(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                _remove_if_dead(path)


def _is_half_made(path: Path) -> bool:
    """Return whether a process has ended before the lock was there; raises `OSError`.

    Nothing else is in such a directory; anything else in it is of the user.
    """
    about = path.lstat()
    is_ours = about.st_uid == os.geteuid() and about.st_mode == stat.S_IFDIR | 0o700
    is_old = time.time() - about.st_mtime > _HALF_MADE_S
    return is_ours and is_old and {path / f"{_LOCK}.new"}.issuperset(path.iterdir())


def _remove_if_dead(path: Path) -> None:
    """Remove a directory whose process has ended; raises `OSError` if it runs.

    Another user may have put anything there, such as a pipe, which would be waited for.
    """
    lock = os.open(path / _LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


@contextlib.contextmanager
def _configured(configured: str) -> Iterator[Path]:
    path = expanded(configured).absolute()
    existed = path.is_dir()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_folder(path)
    with _locked(path):  # before another pool's files could be taken for those of this one
        before = {entry.name for entry in path.iterdir()}
        try:
            yield path
        finally:
            if existed:
                _remove_all_but(before, path)
            else:
                shutil.rmtree(path, ignore_errors=True)


def _remove_all_but(names: set[str], path: Path) -> None:
    for entry in path.iterdir():
        if entry.name not in names and not entry.is_dir():
            with contextlib.suppress(OSError):
                entry.unlink()
