"""One flooding key beside nine normal ones: `python -m benchmarks.fairness`, on a simulated clock.

With `--http` it is real: a gateway, two workers with the fake engine, keys from a file, and clients
over HTTP, the flood in a process of its own, which comes and goes while the nine ask all the time:
whatever else the machine does slows both turns.

The normal keys keep as many requests open as `--streams` says: with four they want more than the
pool has, with one they leave slots free, which the flood then takes.
"""

import asyncio
import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import orjson

from benchmarks.flood import Asked, ask
from gateway.bench.client.connection import Client
from gateway.soak.pool import SoakPool
from gateway.soak.scene import PoolShape
from tests.gateway.flood import FLOOD, N_NORMAL, Crowd, jain

_FLOODING = 9
"""Requests that the flooding key has open for each one of the nine: 90 % of all."""
_WORKER = {"n_slots": 8, "fake_step_ms": 20, "n_ctx": 1 << 15, "embeddings": False}
_ADMIN = "watcher"
_NAMES = [f"normal-{i}" for i in range(N_NORMAL)]
_SETTLE_S = 1.0
"""Time for the flood's last answers to end."""


@dataclass(slots=True)
class Seen:
    """What the nine have seen, alone or beside the flood."""

    answers: list[Asked] = field(default_factory=list)
    tokens: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    parts: list[Mapping[str, float]] = field(default_factory=list)
    """Where the time of an answer's first token went, in seconds."""

    def quantile_ms(self, share: float) -> float:
        """Return a quantile of the times to the first token."""
        return quantile([one.first_s for one in self.answers], share) * 1e3


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that so great a share lies at or below."""
    return sorted(values)[int(share * (len(values) - 1))]


@asynccontextmanager
async def pool() -> AsyncIterator[SoakPool]:
    """Run a pool of two workers and eleven keys."""
    with tempfile.TemporaryDirectory(prefix="fairness-") as name:
        folder = Path(name)
        tables = [f'[[key]]\nname = "{one}"\nkey = "{one}"\n' for one in (*_NAMES, FLOOD)]
        tables.append(f'[[key]]\nname = "{_ADMIN}"\nkey = "{_ADMIN}"\nscopes = ["admin"]\n')
        (folder / "keys.toml").write_text("".join(tables))
        shape = PoolShape(gateway={"api_key_file": [f"{folder}/keys.toml"]}, worker=_WORKER)
        one = SoakPool(folder, shape.config(folder))
        try:
            yield await one.start()
        finally:
            await one.stop(signal.SIGKILL)


class Nine:
    """The normal keys: they ask all the time, and what they see counts for `seen`."""

    def __init__(self, url: str, *, explains: bool) -> None:
        self.seen: Seen | None = None
        self._url = url
        self._watcher = Client(url, _ADMIN) if explains else None

    async def ask(self, name: str) -> None:
        """Ask one question after the other."""
        client = Client(self._url, name)
        while True:
            seen, asked = self.seen, await ask(client)
            if seen is None:
                continue
            if asked.status == 429:
                seen.refused[name] += 1
                continue
            seen.answers.append(asked)
            seen.tokens[name] += asked.n_tokens
            if self._watcher is not None:
                seen.parts.append(await _parts(self._watcher, asked))

    async def watch(self, seconds: float, seen: Seen) -> float:
        """Count for a while; returns the p99 of the time to first token, in seconds."""
        before, self.seen = len(seen.answers), seen
        await asyncio.sleep(seconds)
        self.seen = None
        return quantile([one.first_s for one in seen.answers[before:]], 0.99)


async def over_http(streams: int, seconds: float, turns: int, *, explains: bool) -> None:
    """Print what nine keys see with and without a tenth that floods."""
    alone, beside, ratios = Seen(), Seen(), []
    async with pool() as one:
        nine = Nine(one.url, explains=explains)
        asking = [asyncio.create_task(nine.ask(name)) for name in _NAMES for _ in range(streams)]
        for _ in range(turns):
            await asyncio.sleep(_SETTLE_S)
            before_s = await nine.watch(seconds / turns / 2, alone)
            async with _flood(one.url, streams * N_NORMAL * _FLOODING, beside):
                ratios.append(await nine.watch(seconds / turns / 2, beside) / before_s)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    for name, seen in (("alone", alone), ("with flood", beside)):
        told = ", ".join(f"{n} of {who}" for who, n in seen.refused.items() if n) or "none"
        print(
            f"{name:10}  TTFT of the nine, ms: p50 {seen.quantile_ms(0.5):.0f}, "
            f"p99 {seen.quantile_ms(0.99):.0f} ({len(seen.answers)} answers); 429: {told}"
        )
        if seen.parts:
            _explain(seen)
    ratio = beside.quantile_ms(0.99) / alone.quantile_ms(0.99)
    each = ", ".join(f"{one:.2f}" for one in sorted(ratios))
    print(f"p99 beside the flood over p99 alone: {ratio:.2f} (of each turn: {each})")
    print(f"Jain by tokens, with the flood: {jain(beside.tokens):.4f} {dict(beside.tokens)}")


@asynccontextmanager
async def _flood(url: str, n: int, seen: Seen) -> AsyncIterator[None]:
    """Let the flooding key ask from another process while the block runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.flood", url, FLOOD, str(n)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()  # it begins now
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        told = json.loads(await process.stdout.readline())
        await process.wait()
        seen.tokens[FLOOD] += told["tokens"]
        seen.refused[FLOOD] += told["refused"]


async def _parts(watcher: Client, asked: Asked) -> Mapping[str, float]:
    """Ask the gateway where the time of an answer went."""
    told = orjson.loads(await watcher.fetch("GET", f"/admin/requests/{asked.request_id}"))
    last: dict[str, Any] = told["requests"][0]["tasks"][0]["attempts"][-1]
    assigned, started, first = (last[f"{one}_s"] for one in ("assigned", "started", "first_token"))
    return {
        "first token": asked.first_s,
        "queue": assigned,
        "to the worker": started - assigned,
        "reading": first - started,
        "HTTP and client": asked.first_s - first,
    }


def _explain(seen: Seen) -> None:
    """Print where the time of all answers went, and of the slowest."""
    slow = sorted(seen.parts, key=lambda one: one["first token"])[-max(1, len(seen.parts) // 50) :]
    for name, parts in (("all", seen.parts), ("slowest 2 %", slow)):
        means = ", ".join(f"{key} {fmean(one[key] for one in parts) * 1e3:.1f}" for key in parts[0])
        print(f"    {name}, mean ms: {means}")


@click.command()
@click.option("--streams", default=4, help="Open requests of each normal key.")
@click.option("--seconds", default=120.0, help="Simulated time; with --http, real time of both.")
@click.option("--turns", default=6, help="With --http: how often the flood comes and goes.")
@click.option("--http", "is_real", is_flag=True, help="Ask a real gateway over HTTP.")
@click.option("--explain", is_flag=True, help="With --http: where the time to first token went.")
def main(streams: int, seconds: float, turns: int, *, is_real: bool, explain: bool) -> None:
    """Print shares, times to first token and refusals, with and without the flood."""
    if is_real:
        asyncio.run(over_http(streams, seconds, turns, explains=explain))
        return
    alone, beside = (
        Crowd(floods=floods, n_streams=streams, duration_s=seconds).run()
        for floods in (False, True)
    )
    n_others = sum(n for name, n in beside.refused.items() if name != FLOOD)
    print(f"Jain by tokens             {beside.jain:.4f}")
    print(f"p99 TTFT of the nine, s    {alone.p99_s():.2f} alone, {beside.p99_s():.2f} with flood")
    print(f"ratio                      {beside.p99_s() / alone.p99_s():.2f}")
    print(f"429 of the nine            {n_others}")
    print(f"429 of the flood           {beside.refused[FLOOD]}")


if __name__ == "__main__":
    main()
