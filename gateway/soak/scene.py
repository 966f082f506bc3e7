"""One pool under load, and what a fault needs to act on it."""

import os
import random
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gateway.soak.gate import GateAddress, TcpGate
from gateway.soak.load import Answers, SoakLoad, reference_answers
from gateway.soak.pool import SoakPool
from gateway.soak.requests import FAKE_TEMPLATE, SoakRequest, Traffic, TrafficShape

ENGINES = ("fake", "model")
_FAKE: Mapping[str, Any] = {
    "backend": "fake",
    "n_slots": 8,
    "n_ctx": 1 << 15,
    "fake_step_ms": 8,
    "embeddings": True,
    "chat_template": FAKE_TEMPLATE,
}
_MODEL: Mapping[str, Any] = {"n_slots": 4, "n_ctx": 8192, "embeddings": True}
_GATE = "gate.sock"
FAR = "far"
"""Name of the worker behind the gate."""
_GATEWAY: Mapping[str, Any] = {"port": 0, "metrics": True, "heartbeat_s": 0.25}

Prepare = Callable[[Path], Awaitable[tuple[TcpGate | None, Mapping[str, str]]]]
"""Puts into the folder what a pool needs; returns the gate, if it has one, and texts of the
configuration with what stands in their place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShape:
    """How many processes a pool has, and their keys of the configuration beyond the usual."""

    engine: str = "fake"
    n_workers: int = 2
    gateway: Mapping[str, Any] = field(default_factory=dict)
    worker: Mapping[str, Any] = field(default_factory=dict)
    prepare: Prepare | None = None
    """Called before the pool starts."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment of all processes."""
    more: str = ""
    """Further tables; `{folder}` stands for the folder of the pool, here and in all texts."""

    def config(self, folder: Path) -> str:
        """Write the configuration."""
        worker = {**(_FAKE if self.engine == "fake" else _MODEL), **self.worker}
        if self.n_workers > 1:
            worker["count"] = self.n_workers
        text = 'runtime_dir = "{folder}/run"\n' + self.more
        text += "[gateway]\n" + _table({**_GATEWAY, **self.gateway})
        text += "[[worker]]\n" + _table({"name": "w", **worker})
        return text.replace("{folder}", str(folder))

    def with_far(self) -> "PoolShape":
        """Add a worker named `far`, whose only way to the gateway leads through a gate."""
        usual = _FAKE if self.engine == "fake" else _MODEL
        keys = {"name": FAR, **usual, **self.worker, "connect": [f"ipc://{{folder}}/{_GATE}"]}
        return replace(self, prepare=_open_gate, more=f"{self.more}[[worker]]\n{_table(keys)}")

    @property
    def traffic(self) -> TrafficShape:
        """What its clients ask for."""
        if self.engine == "fake":
            return TrafficShape()
        return TrafficShape(is_fake=False, model="", n_min=16, n_max=48)


def _table(keys: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {_value(value)}\n" for name, value in keys.items())


def _value(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value).lower()


@dataclass(slots=True)
class Scene:
    """A pool and its load, for a fault."""

    pool: SoakPool
    load: SoakLoad
    rng: random.Random
    gate: TcpGate | None = None
    violations: list[str] = field(default_factory=list)
    """Expectations of the fault that were not met, in words."""

    def signal(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a process a signal; return its pid."""
        pid = self.pool.pid_of(name)
        os.kill(pid, number)
        return pid

    async def back(self, name: str, *, since: int, within_s: float = 30.0) -> None:
        """Wait until a process is ready again, by a line of the log from `since` on."""
        await self.pool.wait_for(rf"process ready child=(\S+/)?{name} ", within_s, since=since)

    def expect(self, is_so: bool, what: str) -> None:
        """Note `what` as a violation unless `is_so`."""
        if not is_so:
            self.violations.append(what)


@dataclass(slots=True)
class ExpectedAnswers:
    """The requests of each shape of traffic, and the answers that a pool without a fault gives."""

    seed: int
    known: dict[TrafficShape, tuple[Sequence[SoakRequest], Answers]] = field(default_factory=dict)

    async def of(self, pool: SoakPool, shape: TrafficShape) -> tuple[list[SoakRequest], Answers]:
        """Return requests and answers; the first time by asking `pool`, which must be sound."""
        if shape not in self.known:
            drawn = Traffic(self.seed, shape).requests()
            self.known[shape] = drawn, await reference_answers(pool.url, drawn)
        requests, answers = self.known[shape]
        return list(requests), answers


@asynccontextmanager
async def pool_under_load(
    shape: PoolShape, expected: ExpectedAnswers, *, seed: int, traffic: TrafficShape | None = None
) -> AsyncIterator[Scene]:
    """Start a pool and prepare its load, which the caller starts; all of it ends with the block."""
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        (folder / "slots").mkdir()
        gate, texts = await shape.prepare(folder) if shape.prepare is not None else (None, {})
        config = shape.config(folder)
        for placeholder, text in texts.items():
            config = config.replace(placeholder, text)
        env = {name: text.replace("{folder}", str(folder)) for name, text in shape.env.items()}
        pool = SoakPool(folder, config, env)
        try:
            await pool.start()
            requests, answers = await expected.of(pool, traffic or shape.traffic)
            load = SoakLoad(pool.url, requests, answers)
            yield Scene(pool, load, random.Random(seed), gate)  # noqa: S311  no secret
        finally:
            if gate is not None:
                await gate.close()
            await pool.stop(signal.SIGKILL)


async def _open_gate(folder: Path) -> tuple[TcpGate, Mapping[str, str]]:
    """Open a gate to the socket of the workers."""
    target = GateAddress(path=f"{folder}/run/workers.sock")
    gate = TcpGate(target, GateAddress(path=str(folder / _GATE)))
    await gate.open()
    return gate, {}
