"""A process under test: its output as it comes, its exit code, and what it leaves behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tests.cores import threads

ROOT = Path(__file__).parents[2]
MARK = "LLAMAPOOL_TEST_MARK"
LIMIT_S = 40.0
"""How long a test waits for what must come: others compute on the same cores."""
_SEED = {"LLAMA_ARG_SEED": "1"}
"""A request without a seed gets the same answer in every run, not an empty one in one of fifty."""
_CACHE = {"LLAMA_CACHE": os.devnull}
"""Models of the person who runs the tests stay out."""
_SHARE = {"LLAMA_ARG_THREADS": str(threads())} if "PYTEST_XDIST_WORKER" in os.environ else {}
"""A worker that is not told otherwise takes every core; the other test processes need theirs."""
_OWN = {**_SEED, **_CACHE, **_SHARE}

T = TypeVar("T")


class Process:
    """Runs a command and reads its standard error line by line."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.mark = uuid.uuid4().hex
        self.lines: list[str] = []
        self._cursor = 0
        self._arrived = threading.Condition()
        self._ended = False
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("LLAMA_", "NOTIFY_"))}
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.popen = subprocess.Popen(
            argv,
            env={**clean, **_OWN, "PYTHONPATH": path, MARK: self.mark, **(env or {})},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._arrived:
                self.lines.append(line.rstrip("\n"))
                self._arrived.notify_all()
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()

    def wait_for(self, pattern: str, timeout_s: float = LIMIT_S) -> re.Match[str]:
        """Return the next line that matches; lines up to it are not looked at again."""

        def find() -> re.Match[str] | None:
            while self._cursor < len(self.lines):
                self._cursor += 1
                if match := re.search(pattern, self.lines[self._cursor - 1]):
                    return match
            return None

        return self._wait(find, pattern, timeout_s)

    def wait_for_count(self, pattern: str, count: int) -> None:
        """Return once so many lines match, wherever they stand."""
        self._wait(
            lambda: sum(bool(re.search(pattern, line)) for line in self.lines) >= count,
            pattern,
            LIMIT_S,
        )

    def _wait(self, find: Callable[[], T | None], pattern: str, timeout_s: float) -> T:
        deadline = time.monotonic() + timeout_s
        with self._arrived:
            while True:
                if found := find():
                    return found
                left_s = deadline - time.monotonic()
                if self._ended or left_s <= 0 or not self._arrived.wait(left_s):
                    raise AssertionError(f"no line matches {pattern!r} in:\n{self.text}")

    @property
    def text(self) -> str:
        """Return all output so far."""
        return "\n".join(self.lines)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process alone."""
        self.popen.send_signal(number)

    def wait(self, timeout_s: float = LIMIT_S) -> int:
        """Return the exit code, once all output is read."""
        code = self.popen.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def survivors(self) -> list[int]:
        """Return the processes it started that still live after `LIMIT_S`."""
        deadline = time.monotonic() + LIMIT_S
        while (alive := marked(self.mark)) and time.monotonic() < deadline:
            wait_for_exit(alive[0], deadline - time.monotonic())
        return alive

    def close(self) -> None:
        """End it and whatever it has left behind; twice asked, it ends at once and tidies up."""
        for number, within_s in ((signal.SIGTERM, 0.05), (signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            self.popen.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(within_s)
        self.popen.wait()
        for pid in marked(self.mark):
            os.kill(pid, signal.SIGKILL)
        self._reader.join()
        assert self.popen.stdout is not None
        self.popen.stdout.close()


def marked(mark: str) -> list[int]:
    """Return the live processes that have a mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # it has just gone, or belongs to somebody else
    return found


def wait_for_exit(pid: int, timeout_s: float) -> None:
    """Return when a process that need not be our child has gone, or after the time-out."""
    import select

    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([fd], [], [], max(0.0, timeout_s))
    finally:
        os.close(fd)


def python(*args: str) -> list[str]:
    """Return the command line of this interpreter with arguments."""
    return [sys.executable, *args]
