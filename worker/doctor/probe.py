"""Reads facts about this host: limits, files, ports."""

import contextlib
import importlib.metadata
import importlib.util
import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from protocol.config.config import GatewayConfig
from protocol.endpoint import UNIX_PATH_MAX, UNIX_SUFFIX
from protocol.errors import ConfigError
from protocol.filenames import absolute, expanded, is_dir
from protocol.process.listening import hosts, listen
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


def addresses(gateway: GatewayConfig) -> Iterator[tuple[str, str]]:
    """Try to listen on each address; yield address and error, if any."""
    plain = replace(gateway, ssl_key_file="", ssl_cert_file="")  # another check reads these
    with contextlib.ExitStack() as listening:
        for host in hosts(gateway):
            if host.endswith(UNIX_SUFFIX):
                fault = unix_fault(absolute(expanded(host)))
                yield host, f"cannot listen on {host}: {fault}" if fault else ""
                continue
            where, fault = f"{host or '*'}:{gateway.port}", ""
            try:
                (sock,) = listen(replace(plain, host=host))
                listening.callback(sock.close)
            except ConfigError as error:
                fault = str(error)
            yield where, fault


def unix_fault(path: Path) -> str:
    """Return why no socket can be made at a path; "" if one can."""
    if len(os.fsencode(path)) > UNIX_PATH_MAX:
        return f"longer than the {UNIX_PATH_MAX} bytes of a socket's path"
    can = is_dir(path.parent) and os.access(path.parent, os.W_OK)
    return "" if can else f"{path.parent} cannot be written"


def directory(configured: str) -> tuple[Path, int | None, bool]:
    """Return where sockets will be, its mode if it is there, and whether it can be written."""
    path = absolute(expanded(configured)) if configured else parent()
    mode = path.stat().st_mode if is_dir(path) else None
    return path, mode, may_hold_files(path)


def may_hold_files(folder: Path) -> bool:
    """Return whether files can be made in a folder, which is made if it is not there."""
    there = folder
    while not os.path.exists(there) and there != there.parent:  # noqa: PTH110 - as `is_dir`
        there = there.parent
    return is_dir(there) and os.access(there, os.W_OK | os.X_OK)


def may_append(file: Path) -> bool:
    """Return whether a file can be written; its folder is not made."""
    if os.path.lexists(file):
        return not is_dir(file) and os.access(file, os.W_OK)
    return is_dir(file.parent) and os.access(file.parent, os.W_OK | os.X_OK)
