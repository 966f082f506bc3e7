"""Starts the two servers with the same flags, and looks at their memory."""

import asyncio
import contextlib
import os
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.processes import family, free_port
from gateway.bench.client.connection import Client, RequestFailed

ROOT = Path(__file__).resolve().parents[2]
_START_S = 180.0
_STOP_S = 30.0
_POLL_S = 0.1


class Side(StrEnum):
    """Whom a result is of."""

    OURS = "llamapool"
    THEIRS = "llama-server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What both are started with."""

    model: Path
    slots: int
    ctx: int
    threads: int
    extra: tuple[str, ...] = ()
    workers: int = 1
    """Ours only; slots and context are shared out to them."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    url: str
    pid: int


def command(side: Side, binary: Path, flags: Flags, port: int) -> list[str]:
    """Write the command line."""
    start, workers = [str(binary)], 1
    if side is Side.OURS:
        start = [sys.executable, "-m", "worker.cli", "serve", "--workers", str(flags.workers)]
        workers = flags.workers
    return [
        *(*start, "-m", str(flags.model), "--port", str(port)),
        *("-np", str(flags.slots // workers), "-c", str(flags.ctx // workers)),
        *("-t", str(flags.threads), "--kv-unified", "--metrics"),
        *flags.extra,
    ]


@contextlib.asynccontextmanager
async def running(side: Side, binary: Path, flags: Flags) -> AsyncIterator[Server]:
    """Start a server, wait until it can serve, end it afterwards."""
    port = free_port()
    environment = dict(os.environ)
    if side is Side.THEIRS:
        folders = (str(binary.parent), os.environ.get("LD_LIBRARY_PATH"))
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, folders))
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *command(side, binary, flags, port),
            env=environment,
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
        try:
            server = Server(f"http://127.0.0.1:{port}", process.pid)
            if not await _is_ready(server, process):
                log.seek(0)
                output = log.read()[-2000:].decode(errors="replace")
                raise SystemExit(f"{side} does not become ready:\n{output}")
            yield server
        finally:
            await _end(process)


async def _is_ready(server: Server, process: Process) -> bool:
    client = Client(server.url)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_START_S):
            while process.returncode is None:
                with contextlib.suppress(RequestFailed):
                    await client.get("/health")
                    client.close()
                    return True
                await asyncio.sleep(_POLL_S)
    return False


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a process and all its descendants."""

    pss_mb: float
    """Proportional set size: a page that several processes share counts once in all."""
    rss_mb: float


def memory(pid: int) -> Memory:
    """Add up the memory of a process and all its descendants."""
    rollups = [Path(f"/proc/{one}/smaps_rollup").read_text() for one in family(pid)]
    return Memory(_field(rollups, "Pss:"), _field(rollups, "Rss:"))


def _field(rollups: list[str], name: str) -> float:
    lines = (line.split() for text in rollups for line in text.splitlines())
    return sum(int(words[1]) for words in lines if words[0] == name) * 1024 / 1e6
