"""A real pool, and what its nine keys see in three companies that take turns.

Alone, beside a tenth key that asks as they do, and beside the same key flooding. Against the tenth
key a flood may take nothing at all; against nobody it also has the one share that it is due.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fairness.nine import Nine
from benchmarks.fairness.seen import Seen
from benchmarks.processes import CoreUse, core_use
from gateway.bench.client.connection import Client
from gateway.soak.pool import SoakPool
from gateway.soak.scene import PoolShape
from tests.gateway.flood import FLOOD, N_NORMAL, jain

_FLOODING = 9
"""Requests that the flooding key has open for each one of the nine: 90 % of all."""
_WORKER: Mapping[str, Mapping[str, object]] = {
    "fake": {"n_slots": 8, "n_ctx": 1 << 15, "embeddings": False},
    "model": {"n_slots": 8, "n_ctx": 1 << 13, "embeddings": False},
}
_ADMIN = "watcher"
_NAMES = [f"normal-{i}" for i in range(N_NORMAL)]
_SETTLE_S = 1.0
"""Time for the answers of the last company to end."""
_ALONE, _TENTH, _FLOOD = _COMPANIES = ("alone", "with a tenth key", "with the flood")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is asked of which pool, and for how long."""

    streams: int
    """Open requests of each normal key."""
    seconds: float
    """Of all turns together."""
    turns: int
    engine: str
    step_ms: float
    """Of the fake engine."""
    token_ms: float
    """What each token adds to such a step."""
    explains: bool

    @property
    def turn_s(self) -> float:
        """Time of one company in one turn."""
        return self.seconds / self.turns / len(_COMPANIES)

    def flooding(self, company: str) -> int:
        """Return how many requests the tenth key has open."""
        return {_ALONE: 0, _TENTH: self.streams}.get(company, self.streams * N_NORMAL * _FLOODING)


@dataclass(slots=True)
class Turns:
    """What was seen, and how the p99 of each turn compares with that of its turn alone."""

    seen: dict[str, Seen] = field(default_factory=lambda: {name: Seen() for name in _COMPANIES})
    ratios: dict[str, list[float]] = field(
        default_factory=lambda: {name: [] for name in _COMPANIES[1:]}
    )

    def show(self) -> None:
        """Print all of it."""
        for name, seen in self.seen.items():
            seen.show(name)
        for name, ratios in self.ratios.items():
            ratio = self.seen[name].quantile_ms(0.99) / self.seen[_ALONE].quantile_ms(0.99)
            each = ", ".join(f"{one:.2f}" for one in sorted(ratios))
            print(f"p99 {name} over p99 alone: {ratio:.2f} (of each turn: {each})")
        tokens = self.seen[_FLOOD].tokens
        print(f"Jain by tokens, with the flood: {jain(tokens):.4f} {dict(tokens)}")


async def run(plan: Plan) -> None:
    """Let the companies take turns while the nine ask, and print what they see."""
    told = Turns()
    async with _pool(plan) as pool:
        nine = Nine(pool.url, Client(pool.url, _ADMIN) if plan.explains else None)
        asking = [
            asyncio.create_task(nine.ask(name)) for name in _NAMES for _ in range(plan.streams)
        ]
        try:
            for _ in range(plan.turns):
                await _turn(plan, pool, nine, told)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
    told.show()


async def _turn(plan: Plan, pool: SoakPool, nine: Nine, told: Turns) -> None:
    alone_s = 0.0
    for name in _COMPANIES:
        await asyncio.sleep(_SETTLE_S)
        seen = told.seen[name]
        async with _asking(pool.url, plan.flooding(name), seen) as pid:
            before = _uses(pool, pid)
            p99_s = await nine.watch(plan.turn_s, seen)
            seen.add_uses(before, _uses(pool, pid))
        if name == _ALONE:
            alone_s = p99_s
        else:
            told.ratios[name].append(p99_s / alone_s)


def _uses(pool: SoakPool, other: int) -> dict[str, CoreUse]:
    """Read what each process has done; `other` is that of the tenth key."""
    pids = {name: pool.pid_of(name) for name in pool.names()}
    pids["client of the nine"] = os.getpid()
    if other:
        pids["client of the tenth"] = other
    return {name: core_use(pid) for name, pid in pids.items()}


@asynccontextmanager
async def _asking(url: str, n: int, seen: Seen) -> AsyncIterator[int]:
    """Let the tenth key keep `n` requests open while the block runs; yield its process, or 0."""
    if not n:
        yield 0
        return
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.fairness.flood", url, FLOOD, str(n)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()  # it begins now
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        told = json.loads(await process.stdout.readline())
        await process.wait()
        seen.tokens[FLOOD] += told["tokens"]
        seen.refused[FLOOD] += told["refused"]


@asynccontextmanager
async def _pool(plan: Plan) -> AsyncIterator[SoakPool]:
    """Run a pool of two workers and eleven keys."""
    worker = dict(_WORKER[plan.engine])
    if plan.engine == "fake":
        worker |= {"fake_step_ms": plan.step_ms, "fake_token_ms": plan.token_ms}
    with tempfile.TemporaryDirectory(prefix="fairness-") as name:
        folder = Path(name)
        tables = [f'[[key]]\nname = "{one}"\nkey = "{one}"\n' for one in (*_NAMES, FLOOD)]
        tables.append(f'[[key]]\nname = "{_ADMIN}"\nkey = "{_ADMIN}"\nscopes = ["admin"]\n')
        (folder / "keys.toml").write_text("".join(tables))
        gateway = {"api_key_file": [f"{folder}/keys.toml"]}
        shape = PoolShape(engine=plan.engine, gateway=gateway, worker=worker)
        one = SoakPool(folder, shape.config(folder))
        try:
            yield await one.start()
        finally:
            await one.stop(signal.SIGKILL)
