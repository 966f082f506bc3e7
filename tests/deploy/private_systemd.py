"""A systemd of its own in namespaces; it sees this machine's files, and writes into memory."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

_BOOT = Path(__file__).with_name("boot.sh")
_CGROUPS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
_SYSTEMD = Path("/lib/systemd/systemd")


def why_not() -> str:
    """Return why no private systemd can run here; empty if one can."""
    if os.geteuid() != 0:
        return "needs root for namespaces"
    if not _SYSTEMD.exists() or not shutil.which("unshare") or not shutil.which("nsenter"):
        return "systemd or util-linux is not installed"
    if _cgroup() is None:
        return "there is no writable cgroup2"
    probe = "mount -t tmpfs tmpfs /mnt && mount -t proc proc /mnt"
    argv = ["unshare", "--fork", "--pid", "--mount", "--cgroup", "--net", "sh", "-c", probe]
    done = subprocess.run(argv, capture_output=True, check=False)
    return "" if done.returncode == 0 else "namespaces are not allowed here"


def _cgroup() -> Path | None:
    """Return the root of cgroup2, if groups can be made there."""
    for path in _CGROUPS:
        if (path / "cgroup.controllers").exists() and os.access(path, os.W_OK):
            return path
    return None


class PrivateSystemd:
    """Boots with `start`; `run` runs a command inside and returns what it prints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        cgroup = _cgroup()
        assert cgroup is not None
        self._cgroup = cgroup / f"llamapool-test-{os.getpid()}"
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def start(self) -> None:
        """Boot, and return once systemd says that it has."""
        self._cgroup.mkdir()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.bind(str(self.folder / "booted.sock"))
            sock.settimeout(90)
            self._process = subprocess.Popen(
                [
                    *("sh", "-c", f'echo $$ >{self._cgroup}/cgroup.procs && exec "$@"', "sh"),
                    *("unshare", "--fork", "--pid", "--mount", "--cgroup", "--uts", "--ipc"),
                    *("--net", "--kill-child", str(_BOOT), str(self.folder)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            while b"READY=1" not in sock.recv(4096):
                pass
        (pid,) = _children_of(self._process.pid)
        self._pid = pid

    def run(self, *argv: str, check: bool = True) -> str:
        """Run a command inside; raises `AssertionError` with its output if it fails."""
        done = self.ask(*argv)
        text = done.stdout + done.stderr
        assert done.returncode == 0 or not check, f"{argv}: {done.returncode}\n{text}"
        return text

    def ask(self, *argv: str, timeout_s: float = 60) -> "subprocess.CompletedProcess[str]":
        """Run a command inside and return how it went."""
        enter = ["nsenter", "-t", str(self._pid), "-m", "-p", "-n", "-u", "-i", "-C", "-r", "-w"]
        return subprocess.run(
            [*enter, *argv], capture_output=True, text=True, check=False, timeout=timeout_s
        )

    def path(self, inside: str) -> Path:
        """Return where a file of the inside is seen from here."""
        return Path(f"/proc/{self._pid}/root") / inside.lstrip("/")

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).strip()

    def close(self) -> None:
        """End everything in it."""
        if self._process is not None:
            self._process.kill()  # its child is the first process: the kernel kills the rest
            self._process.wait()
        _remove(self._cgroup)


def _children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(one) for one in text.split()]


def _remove(cgroup: Path) -> None:
    """Remove a tree of control groups once its processes have gone."""
    for path in sorted(cgroup.rglob("*"), key=lambda one: -len(one.parts)):
        if path.is_dir():
            _rmdir(path)
    _rmdir(cgroup)


def _rmdir(path: Path) -> None:
    """Remove one group; the kernel says EBUSY until the last process has been reaped."""
    for _ in range(100):
        try:
            path.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            subprocess.run(["sleep", "0.05"], check=True)
