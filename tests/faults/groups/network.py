"""Group B: what happens between a gateway and a worker that is reached through a gate."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.soak.gate import LinkConditions
from gateway.soak.network_faults import (
    down_for_a_moment,
    down_for_long,
    gate_of,
    rejoined,
)
from gateway.soak.scene import FAR, PoolShape, Scene
from tests.faults.bit_flips import BitFlips
from tests.faults.case import FaultCase, Inject
from tests.faults.tcp_gate import open_tcp_gate
from tests.hostile.wire_frames import attack_wire

FAR_POOL = PoolShape(n_workers=1).with_far()
"""One worker beside the gateway, and one named `far` behind a gate."""
FAR_TCP = replace(
    FAR_POOL,
    prepare=open_tcp_gate,
    gateway={
        "bind": ["tcp://127.0.0.1:{bind_port}"],
        "curve_key_file": "{folder}/keys/gateway.key",
        "worker_keys": "{folder}/keys",
    },
    more=FAR_POOL.more.replace("ipc://{folder}/gate.sock", "tcp://127.0.0.1:{gate_port}")
    + 'curve_key_file = "{folder}/keys/far.key"\n'
    + 'gateway_keys = ["{folder}/keys/gateway.pub"]\n',
)
"""The same over tcp with CURVE."""


def on_far(inject: Callable[[Scene, str], Awaitable[None]]) -> Inject:
    """A fault that a soak draws, done to the worker behind the gate."""
    return lambda scene: inject(scene, FAR)


async def resets(scene: Scene, name: str) -> None:
    """End the connection five times; the worker joins again."""
    since = len(scene.pool.lines)
    for _ in range(5):
        gate_of(scene).reset()
        await asyncio.sleep(1.5)
    await rejoined(scene, since)


async def slow_in_small_pieces(scene: Scene) -> None:
    since, gate = len(scene.pool.lines), gate_of(scene)
    gate.conditions = LinkConditions(latency_s=0.1, slice_bytes=16)
    await scene.load.answers(16)
    gate.conditions = LinkConditions()
    scene.expect(scene.pool.count("worker lost", since=since) == 0, "it was given up")


def flips(n: int) -> Inject:
    """Bits are flipped on the way: the worker must be given up, and no client may read it."""

    async def inject(scene: Scene) -> None:
        flips, since = BitFlips(gate_of(scene)), len(scene.pool.lines)
        for _ in range(n):
            flips.flip()
            await scene.load.answers(4)
        scene.expect(flips.n_flipped == n, f"{flips.n_flipped} bits were flipped")
        # At once, or after 3 s of silence where the bit was in the length of a message.
        await scene.pool.wait_for("worker lost", 30, since=since)

    return inject


async def strangers(scene: Scene) -> None:
    """Send the workers' socket what no worker sends, also in a living worker's name."""
    path = scene.pool.folder / "run" / "workers.sock"
    await asyncio.to_thread(attack_wire, f"ipc://{path}", "w")
    longest = max(map(len, scene.pool.lines))
    scene.expect(longest < 20_000, f"a line of the log has {longest} characters")


async def namesake(scene: Scene) -> None:
    """Start a second worker with the name of a living one: it is refused and ends with 78."""
    since = len(scene.pool.lines)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "worker", "--name", "w"),
        *("--config", str(scene.pool.folder / "run" / "pool.json")),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    code = await asyncio.wait_for(process.wait(), 20)
    scene.expect(code == 78, f"the second one ended with {code}")
    scene.expect(scene.pool.count("worker lost", since=since) == 0, "the first one was lost")


async def reloaded_twice(scene: Scene) -> None:
    """Send SIGHUP and again, while the gateway that was replaced first finishes its streams."""
    for _ in range(2):
        since = len(scene.pool.lines)
        old = scene.pool.pid_of(scene.pool.gateways[0])
        scene.pool.process.send_signal(signal.SIGHUP)
        await scene.pool.wait_for("gateway replaced", 30, since=since)
        scene.expect(scene.pool.pid_of(scene.pool.gateways[0]) != old, "it is the same process")
        await rejoined(scene, since)
        await scene.load.answers(8)


async def clock_jumps(scene: Scene) -> None:
    """Let the wall clock of every process jump by an hour, forth and then back."""
    since = len(scene.pool.lines)
    for hours in ("1", "-1"):
        (scene.pool.folder / "hours").write_text(hours)
        await scene.load.answers(12)
    scene.expect(scene.pool.count("worker lost", since=since) == 0, "a worker was given up")


_CLOCK = Path(__file__).parent / "clock"
"""Holds a module that Python imports at the start of each process."""
_PATH = os.environ.get("PYTHONPATH", "") or str(Path(__file__).parents[3])


def _case(name: str, what: str, inject: Inject, **more: Any) -> FaultCase:
    return replace(FaultCase(name=name, what=what, inject=inject, pool=FAR_POOL), **more)


CASES = [
    _case(
        "B1",
        "the link of a worker is down for long: it is given up, and joins again",
        on_far(down_for_long),
    ),
    _case(
        "B2",
        "the link is down for 1 s: nobody is given up",
        on_far(down_for_a_moment),
        is_shared=True,
    ),
    _case("B3", "the link is reset five times", on_far(resets)),
    _case("B4", "100 ms of latency and slices of 16 bytes: no false death", slow_in_small_pieces),
    _case(
        "A17 tcp",
        "SIGHUP twice: new gateways take over tcp endpoints with CURVE from the old ones",
        reloaded_twice,
        pool=FAR_TCP,
    ),
    _case(
        "B5",
        "bits flipped on the way: the connection ends, no wrong token",
        flips(4),
        pool=FAR_TCP,
    ),
    FaultCase(
        name="B7",
        what="frames that no worker sends, also in the name of a living one",
        inject=strangers,
    ),
    FaultCase(
        name="B9",
        what="the wall clock of all processes jumps by an hour: nobody is given up",
        inject=clock_jumps,
        pool=PoolShape(env={"PYTHONPATH": f"{_CLOCK}:{_PATH}", "HOURS_FILE": "{folder}/hours"}),
    ),
    FaultCase(
        name="B8",
        what="a second worker with a living one's name: refused, the first goes on",
        inject=namesake,
        pool=PoolShape(n_workers=1),
    ),
]
