"""The runtime directory: sockets and the resolved configuration, readable by nobody else."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from protocol.errors import ConfigError


@contextlib.contextmanager
def runtime_directory(configured: str) -> Iterator[Path]:
    """Make a private directory and remove it at the end; a configured one keeps its other files."""
    try:
        path, existed = _make(configured)
    except OSError as error:
        raise ConfigError(f"runtime_dir {configured}: {error.strerror}") from error
    before = {entry.name for entry in path.iterdir()}
    try:
        yield path
    finally:
        _remove(path, before if existed else set(), keep=existed)


def _make(configured: str) -> tuple[Path, bool]:
    if not configured:
        home = os.environ.get("XDG_RUNTIME_DIR", "")
        parent = home if home and os.access(home, os.W_OK) else None
        return Path(tempfile.mkdtemp(prefix="llamapool-", dir=parent)), False
    path = Path(configured).expanduser().absolute()
    existed = path.is_dir()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o022:
        raise ConfigError(f"runtime_dir {path} is writable by others: chmod 0700 it")
    return path, existed


def _remove(path: Path, keep_names: set[str], *, keep: bool) -> None:
    if not keep:
        shutil.rmtree(path, ignore_errors=True)
        return
    for entry in path.iterdir():
        if entry.name not in keep_names and not entry.is_dir():
            with contextlib.suppress(OSError):
                entry.unlink()
