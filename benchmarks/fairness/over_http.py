"""What the normal keys of a real pool measure in three situations, which take turns.

They are alone, beside a tenth key that asks as they do, or beside the same key flooding. A fair
pool treats the nine keys alike in the last two situations; alone, they have the tenth share, too.
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

from benchmarks.fairness.flood import stopped
from benchmarks.fairness.normal_keys import NormalKeys
from benchmarks.fairness.results import Results
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
"""Seconds for the answers of the last situation to end."""
_ALONE, _TENTH, _FLOOD = _SITUATIONS = ("alone", "with a tenth key", "with the flood")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The pool, the load, and how long it takes."""

    streams: int
    """Open requests of each normal key."""
    seconds: float
    """Duration of all turns together."""
    turns: int
    engine: str
    step_ms: float
    """Duration of a step of the fake engine."""
    token_ms: float
    """What each token adds to such a step."""
    explains: bool

    @property
    def turn_s(self) -> float:
        """Seconds of one situation in one turn."""
        return self.seconds / self.turns / len(_SITUATIONS)

    def flooding(self, situation: str) -> int:
        """Return how many requests the tenth key has open."""
        return {_ALONE: 0, _TENTH: self.streams}.get(situation, self.streams * N_NORMAL * _FLOODING)


@dataclass(slots=True)
class AllResults:
    """The results of each situation."""

    of: dict[str, Results] = field(
        default_factory=lambda: {name: Results() for name in _SITUATIONS}
    )
    ratios: dict[str, list[float]] = field(
        default_factory=lambda: {name: [] for name in _SITUATIONS[1:]}
    )
    """For each turn, the p99 of the time to the first token over that of the keys alone."""

    def show(self) -> None:
        """Print all of it."""
        for name, results in self.of.items():
            results.show(name)
        for name, ratios in self.ratios.items():
            ratio = self.of[name].quantile_ms(0.99) / self.of[_ALONE].quantile_ms(0.99)
            each = ", ".join(f"{one:.2f}" for one in sorted(ratios))
            print(f"p99 {name} over p99 alone: {ratio:.2f} (of each turn: {each})")
        tokens = self.of[_FLOOD].tokens
        print(f"Jain by tokens, with the flood: {jain(tokens):.4f} {dict(tokens)}")


async def run(plan: Plan) -> None:
    """Let the situations take turns while the normal keys ask, and print the results."""
    results = AllResults()
    async with _pool(plan) as pool:
        keys = NormalKeys(pool.url, Client(pool.url, _ADMIN) if plan.explains else None)
        asking = [
            asyncio.create_task(keys.ask(name)) for name in _NAMES for _ in range(plan.streams)
        ]
        try:
            for _ in range(plan.turns):
                await _turn(plan, pool, keys, results)
        finally:
            await stopped(asking)
    results.show()


async def _turn(plan: Plan, pool: SoakPool, keys: NormalKeys, results: AllResults) -> None:
    alone_s = 0.0
    for name in _SITUATIONS:
        await asyncio.sleep(_SETTLE_S)
        own = results.of[name]
        async with _asking(pool.url, plan.flooding(name), own) as pid:
            before = _uses(pool, pid)
            p99_s = await keys.watch(plan.turn_s, own)
            own.add_uses(before, _uses(pool, pid))
        if name == _ALONE:
            alone_s = p99_s
        else:
            results.ratios[name].append(p99_s / alone_s)


def _uses(pool: SoakPool, other: int) -> dict[str, CoreUse]:
    """Read the use of cores by each process; `other` is the process of the tenth key."""
    pids = {name: pool.pid_of(name) for name in pool.names()}
    pids["client of the nine"] = os.getpid()
    if other:
        pids["client of the tenth"] = other
    return {name: core_use(pid) for name, pid in pids.items()}


@asynccontextmanager
async def _asking(url: str, n: int, results: Results) -> AsyncIterator[int]:
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
        counts = json.loads(await process.stdout.readline())
        if code := await process.wait():
            raise RuntimeError(f"the client of the tenth key ended with code {code}")
        results.tokens[FLOOD] += counts["tokens"]
        results.refused[FLOOD] += counts["refused"]


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
