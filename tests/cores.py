"""Cores that tests share: how many one may compute on, and for how long the others took them."""

import contextlib
import os
from pathlib import Path


def threads() -> int:
    """Return the number of threads for a model, two at most: more make no test faster.

    Threads of llama.cpp wait for one another awake, so more threads than cores cost a multiple of
    the time.
    """
    n_processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return max(1, min(2, len(os.sched_getaffinity(0)) // n_processes))


def share() -> str:
    """Return a list of cores, as `taskset` wants it, for a program that computes on all it finds.

    As many as `threads`, and others in each test process.
    """
    cores = sorted(os.sched_getaffinity(0))
    first = threads() * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return ",".join(str(cores[(first + i) % len(cores)]) for i in range(threads()))


class CoreWait:
    """How long the threads of a process were ready to run, while other programs had the cores.

    What a limit of time must not count, where tests run beside one another. Read from the kernel's
    `schedstat`; where there is none, nobody has waited.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = self._waited_s()

    def lap(self) -> float:
        """Return by how much one thread waited since the last lap, in seconds: the longest."""
        now = self._waited_s()
        longest_s = max((at - self._before.get(tid, 0.0) for tid, at in now.items()), default=0.0)
        self._before = now
        return longest_s

    def _waited_s(self) -> dict[str, float]:
        found = {}
        for task in Path(f"/proc/{self._pid}/task").iterdir():
            with contextlib.suppress(OSError, IndexError):  # it has just ended; there is none
                found[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
        return found
