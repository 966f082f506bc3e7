"""Questions to a pool and to llama-server on the same model, and whether they answer alike."""

import asyncio
import contextlib
import json
import os
import signal
import urllib.request
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.compare.servers import Flags, Side, running
from benchmarks.gpu.alike import alike

TEXTS = (
    "The sea was calm, and the captain said",
    "def sort(values):\n",
    "In the year 1912 a young engineer",
    "1 2 3 4 5 6 7",
    "Liebe Freunde, heute",
    "The three laws of thermodynamics are",
)


def ask(url: str, text: str, *, timeout_s: float = 300.0, **fields: Any) -> dict[str, Any]:
    """Send one native completion and return the answer."""
    body = {"prompt": text, "temperature": 0, "return_tokens": True, "ignore_eos": True, **fields}
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return dict(json.load(answer))


def get(url: str, path: str) -> Any:
    """Return the JSON of a GET."""
    with urllib.request.urlopen(f"{url}{path}", timeout=60) as answer:
        return json.load(answer)


@contextlib.asynccontextmanager
async def serving(
    side: Side, binary: Path, model: Path, *flags: str, workers: int = 1
) -> AsyncIterator[tuple[str, int]]:
    """Start a server; yields its address and process."""
    threads = len(os.sched_getaffinity(0))
    setting = Flags(model=model, slots=8, ctx=8192, threads=threads, extra=flags, workers=workers)
    async with running(side, binary, setting) as server:
        yield server.url, server.pid


@dataclass(frozen=True, slots=True)
class Asked:
    """What each text is asked of, and how."""

    side: Side
    binary: Path
    model: Path
    n_tokens: int
    flags: tuple[str, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)


async def _answers(asked: Asked) -> list[list[int]]:
    async with serving(asked.side, asked.binary, asked.model, *asked.flags) as (url, _):
        found = []
        for text in TEXTS:
            n = asked.n_tokens
            answer = await asyncio.to_thread(ask, url, text, n_predict=n, **asked.fields)
            found.append(answer["tokens"])
        return found


def answers(asked: Asked) -> list[list[int]]:
    """Return the token ids of each text, one after the other."""
    return asyncio.run(_answers(asked))


async def _kill(model: Path, n_tokens: int, flags: tuple[str, ...]) -> dict[str, Any]:
    async with serving(Side.OURS, Path(), model, *flags, workers=2) as (url, pid):
        with ThreadPoolExecutor(8) as threads:
            loop = asyncio.get_running_loop()

            def send(text: str) -> "asyncio.Future[dict[str, Any]]":
                return loop.run_in_executor(threads, lambda: ask(url, text, n_predict=n_tokens))

            calm = [await send(text) for text in TEXTS]
            started = [asyncio.ensure_future(send(text)) for text in TEXTS]
            await _until_two_are_busy(url, started)
            victim = _workers_of(pid)[0]
            os.kill(victim, signal.SIGKILL)
            after = await asyncio.gather(*started)
        found = alike([one["tokens"] for one in after], [one["tokens"] for one in calm])
        whole = sum(len(one["tokens"]) == n_tokens for one in after)
        return {**found, "whole": whole}


async def _until_two_are_busy(url: str, answers: Sequence[asyncio.Future[Any]]) -> None:
    """Wait until two slots have work; raises `RuntimeError` if all answers end before."""
    while (await asyncio.to_thread(_n_busy, url)) < 2:
        if all(one.done() for one in answers):
            raise RuntimeError("all answers ended before two slots had work: ask for more tokens")
        await asyncio.sleep(0.05)


def _n_busy(url: str) -> int:
    return sum(bool(slot["is_processing"]) for slot in get(url, "/slots"))


def _workers_of(supervisor: int) -> list[int]:
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    lines = {int(one): Path(f"/proc/{one}/cmdline").read_bytes() for one in children}
    return [pid for pid, line in lines.items() if b"\0worker\0" in line]


def kill_one_of_two(model: Path, n_tokens: int, *flags: str) -> dict[str, Any]:
    """Kill one of two workers while it streams; return how many answers came whole, and alike."""
    return asyncio.run(_kill(model, n_tokens, flags))
