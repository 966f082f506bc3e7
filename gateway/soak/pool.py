"""A pool of its own: `llamapool serve` on a configuration, its log, its processes."""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from gateway.bench.client.connection import Client, RequestFailed

_MARK = "LLAMAPOOL_SOAK_MARK"
_FAULTS = "LLAMAPOOL_FAKE_FAULTS"
_ROUTINE = re.compile(" request done ")
_END = "(the log ends)"
_QUIET_S = 15.0
"""Longest time until tasks and sockets are gone once the load has ended."""
_SPARE_FDS = 4
"""Descriptors that a process may have more than before: sockets that are just being closed."""
_FOREIGN = ("LLAMA_", "LLAMAPOOL_", "NOTIFY_", "WATCHDOG_", "LISTEN_")


class PoolFailed(Exception):
    """The pool did not start, did not log what was awaited, or did not answer without a fault."""


class SoakPool:
    """Runs `llamapool serve` and reads its log; belongs to one event loop."""

    def __init__(self, folder: Path, config: str, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.url = ""
        self._config = config
        self._env = env or {}
        self._mark = uuid.uuid4().hex
        self._arrived = asyncio.Condition()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    # ---- life ---------------------------------------------------------------------------------

    async def start(self, timeout_s: float = 60.0) -> "SoakPool":
        """Start it and wait until every worker is ready."""
        await self.spawn()
        found = await self.wait_for(r"supervisor ready url=(\S+)", timeout_s)
        self.url = found[1]
        return self

    async def spawn(self) -> None:
        """Start its processes without waiting for them."""
        path = self.folder / "pool.toml"
        path.write_text(self._config)
        (self.folder / "faults").mkdir(exist_ok=True)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
        own = {_MARK: self._mark, _FAULTS: str(self.folder / "faults")}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "worker.cli", "serve", "--config", str(path)),
            env={**clean, **own, **self._env},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=1 << 26,
        )
        self._reading = asyncio.create_task(self._read(self._process))

    async def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 30.0) -> int:
        """Send the supervisor a signal and kill what is left; returns its exit code, else -1."""
        process = self.process
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        code = -1
        with contextlib.suppress(TimeoutError):
            code = await asyncio.wait_for(process.wait(), timeout_s)
        self.kill_all()
        await process.wait()
        if self._reading is not None:
            await self._reading
        return code

    def kill_all(self) -> None:
        """Kill every process of the pool."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The supervisor."""
        assert self._process is not None
        return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            async with self._arrived:
                self.lines.append(line.decode(errors="replace").rstrip("\n"))
                self._arrived.notify_all()
        async with self._arrived:
            self.lines.append(_END)
            self._arrived.notify_all()

    # ---- the log ------------------------------------------------------------------------------

    async def wait_for(
        self, pattern: str, timeout_s: float = 20.0, *, since: int = 0
    ) -> re.Match[str]:
        """Return the first line from number `since` on that matches; else raise `PoolFailed`."""
        seen = since
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._arrived:
                while True:
                    while seen < len(self.lines):
                        seen += 1
                        if match := re.search(pattern, self.lines[seen - 1]):
                            return match
                    if self.lines[-1:] == [_END]:
                        break
                    await self._arrived.wait()
        told = [line for line in self.lines if not _ROUTINE.search(line)]
        last = "\n".join(told[-30:])
        raise PoolFailed(f"no line matches {pattern!r} in {timeout_s:g} s:\n{last}")

    def count(self, pattern: str, *, since: int = 0) -> int:
        """Count the lines that match."""
        return sum(bool(re.search(pattern, line)) for line in self.lines[since:])

    def pid_of(self, name: str) -> int:
        """Return the process that was last reported ready under a name."""
        ready = re.compile(rf"process ready child=(\S+/)?{re.escape(name)} pid=(\d+)")
        for line in reversed(self.lines):
            if match := ready.search(line):
                return int(match[2])
        raise PoolFailed(f"{name} was never ready")

    def names(self, pattern: str = ".") -> list[str]:
        """Return the names of its processes, in the order in which they were first ready."""
        found = (re.search(r"process ready child=(\S+)", line) for line in self.lines)
        names = dict.fromkeys(match[1].rpartition("/")[2] for match in found if match)
        return [name for name in names if re.search(pattern, name)]

    @property
    def workers(self) -> list[str]:
        """Names of its workers."""
        return sorted(self.names(r"^(?!gateway)"))

    @property
    def gateways(self) -> list[str]:
        """Names of its gateways."""
        return sorted(self.names(r"^gateway"))

    # ---- its processes ------------------------------------------------------------------------

    def pids(self) -> list[int]:
        """Return its live processes, known by a mark in their environment."""
        mark = f"{_MARK}={self._mark}".encode()
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _has(int(entry.name), mark)
        ]

    def descriptors(self) -> dict[str, int]:
        """Count the open descriptors of each process, by name."""
        pids = {name: self.pid_of(name) for name in self.names()}
        pids["supervisor"] = self.process.pid
        return {name: n for name, pid in pids.items() if (n := _n_descriptors(pid))}

    def resident_mib(self) -> dict[str, float]:
        """Return the resident memory of each process, by name, in MiB."""
        found = {}
        for name in self.names():
            with contextlib.suppress(OSError):
                pages = Path(f"/proc/{self.pid_of(name)}/statm").read_text().split()[1]
                found[name] = int(pages) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
        return found

    def order(self, worker: str, what: str) -> None:
        """Make a worker with the fake backend break at its next batch; `what` says how."""
        for name in (worker, *self._full_names(worker)):
            (self.folder / "faults" / name).write_text(what)

    def _full_names(self, worker: str) -> set[str]:
        """Return the names of a worker that begin with its host."""
        found = (re.search(rf"child=(\S+/{re.escape(worker)}) ", line) for line in self.lines)
        return {match[1].replace("/", "_") for match in found if match}

    # ---- HTTP ---------------------------------------------------------------------------------

    async def _fetch(self, path: str) -> bytes:
        """Ask on a connection that is closed at once: an idle one counts as a descriptor."""
        client = Client(self.url)
        try:
            return await client.get(path)
        finally:
            client.close()

    async def get(self, path: str) -> Any:
        """Return the JSON of a page; raises `RequestFailed`."""
        return orjson.loads(await self._fetch(path))

    async def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        text = (await self._fetch("/metrics")).decode()
        rows = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, rows))

    async def is_quiet(self) -> bool:
        """Return whether no slot is busy and no task waits."""
        try:
            slots = await self.get("/slots")
            waiting = await self.metric("llamapool_queue_tasks")
            running = await self.metric("llamacpp:requests_processing")
        except RequestFailed:
            return False
        return not (waiting or running or any(slot["is_processing"] for slot in slots))

    async def leaks(self, before: Mapping[str, int]) -> list[str]:
        """Return what is left over once everything has ended; empty if nothing is."""
        found = []
        if not await eventually(self.is_quiet, _QUIET_S):
            found.append("busy slots or waiting tasks")

        async def is_as_before() -> bool:
            return not self._grown(before)

        if not await eventually(is_as_before, _QUIET_S):
            found.append(f"descriptors {self._grown(before)}")
        return found

    def _grown(self, before: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        now = self.descriptors()
        pairs = {name: (before[name], n) for name, n in now.items() if name in before}
        return {name: pair for name, pair in pairs.items() if pair[1] > pair[0] + _SPARE_FDS}


async def eventually(is_so: Callable[[], Awaitable[bool]], within_s: float = 10.0) -> bool:
    """Check a condition 20 times a second; return False if it does not hold within `within_s`."""
    deadline = time.monotonic() + within_s
    while not await is_so():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


def _has(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # it has just gone, or belongs to somebody else


def _n_descriptors(pid: int) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0
