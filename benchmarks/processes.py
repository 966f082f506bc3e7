"""Processes that are measured: their start, their cores, their CPU time, and ports for them."""

import contextlib
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import httpx


class CoreUse(NamedTuple):
    """Times of all threads of a process, in seconds, from the kernel's `schedstat`.

    Where processes wait for a core, their latencies say more about the machine than about the code.
    """

    ran_s: float = 0.0
    waited_s: float = 0.0
    """Ready to run, without a core."""

    def since(self, before: "CoreUse") -> "CoreUse":
        """Return the times since an earlier reading."""
        return CoreUse(self.ran_s - before.ran_s, self.waited_s - before.waited_s)

    def plus(self, other: "CoreUse") -> "CoreUse":
        """Return the sum of both."""
        return CoreUse(self.ran_s + other.ran_s, self.waited_s + other.waited_s)


def core_use(pid: int) -> CoreUse:
    """Read the times of a process's present threads; zeros where the kernel does not count them."""
    total = CoreUse()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, ValueError):  # the thread has just ended
                ran, waited, _ = map(int, (task / "schedstat").read_text().split())
                total = total.plus(CoreUse(ran / 1e9, waited / 1e9))
    return total


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children = [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text().split()
    ]
    return [pid, *(one for child in children for one in family(child))]


def leave_one_core() -> tuple[int, ...]:
    """Keep this process, and all that it starts, off one core; return that core.

    Raises `ValueError` where there is only one.
    """
    *rest, last = sorted(os.sched_getaffinity(0))
    if not rest:
        raise ValueError("there is only one core")
    os.sched_setaffinity(0, rest)
    return (last,)


def free_port() -> int:
    """Return a port on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ok(process: "subprocess.Popen[bytes]", url: str) -> None:
    """Wait until a server answers with 200; raises `SystemExit` if its process ends before."""
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url).status_code == 200:
                return
        if process.poll() is not None:
            raise SystemExit(f"the server of {url} ended with code {process.returncode}")
        time.sleep(0.02)
