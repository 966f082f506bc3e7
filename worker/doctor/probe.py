"""Reads facts about this host: limits, files, ports."""

import contextlib
import importlib.metadata
import importlib.util
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

from protocol.endpoint import UNIX_SUFFIX
from protocol.filenames import is_dir
from worker.host.topology import groups, text_of
from worker.supervisor.runtime_directory import parent

_ROOT = Path("/")
_UVM = Path("/dev/nvidia-uvm")


def version_of(package: str) -> str:
    """Return the installed version of a package, or nothing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def requirements() -> list[str] | None:
    """Return the packages that llamapool needs; None if it is not installed."""
    try:
        return importlib.metadata.requires("llamapool") or []
    except importlib.metadata.PackageNotFoundError:
        return None


def libraries() -> Path | None:
    """Return the folder of llama.cpp's libraries, without importing anything."""
    if folder := os.environ.get("LLAMA_CPP_LIB_PATH", ""):
        return Path(folder)
    spec = importlib.util.find_spec("llama_cpp")
    return Path(spec.origin).parent / "lib" if spec and spec.origin else None


def limit(kind: int) -> tuple[int, int]:
    """Return the soft and the hard limit of a resource; -1 means no limit."""
    soft, hard = resource.getrlimit(kind)
    return tuple(-1 if value == resource.RLIM_INFINITY else value for value in (soft, hard))  # type: ignore[return-value] # two of two


def free_shm() -> int | None:
    """Return the bytes free in /dev/shm; None if it is not there."""
    try:
        stat = os.statvfs("/dev/shm")  # noqa: S108 - only looked at
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize


def max_tasks(root: Path = _ROOT) -> int | None:
    """Return how many processes and threads this user and the control groups may have.

    None means no limit; root has none of its own.
    """
    texts = [text_of(folder / "pids.max").strip() for folder in groups(root, "pids")]
    found = [int(text) for text in texts if text.isdecimal()]
    of_user, _ = limit(resource.RLIMIT_NPROC)
    if of_user >= 0 and os.geteuid() != 0:
        found.append(of_user)
    return min(found, default=None)


def may_open_uvm() -> bool:
    """Return whether CUDA's memory device may be opened; True without an NVIDIA GPU."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return True
    return os.access(_UVM, os.R_OK | os.W_OK)


def addresses(hosts: str, port: int) -> Iterator[tuple[str, str]]:
    """Try to listen on each address; return address and error, if any."""
    for host in (part.strip() for part in hosts.split(",")):
        if host.endswith(UNIX_SUFFIX):
            folder = Path(host).expanduser().absolute().parent
            can = os.access(folder, os.W_OK)
            yield host, "" if can else f"{folder} cannot be written"
        else:
            yield f"{host or '*'}:{port}", _tried(host, port)


def _tried(host: str, port: int) -> str:
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, number, _, address in found:
            with contextlib.closing(socket.socket(family, kind, number)) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
                probe.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def directory(configured: str) -> tuple[Path, int | None, bool]:
    """Return where sockets will be, its mode if it is there, and whether it can be written."""
    path = Path(configured).expanduser().absolute() if configured else parent()
    mode = path.stat().st_mode if is_dir(path) else None
    there = path
    while not os.path.exists(there) and there != there.parent:  # noqa: PTH110 - as `is_dir`
        there = there.parent  # it would be made
    return path, mode, is_dir(there) and os.access(there, os.W_OK | os.X_OK)
