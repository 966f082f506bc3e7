"""Gateways that are killed or replaced, and workers that are replaced, while requests go on."""

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import orjson

from benchmarks.fleet.tally import Tally
from gateway.soak.scene import ExpectedAnswers, PoolShape, Scene, pool_under_load


async def gateway(args: argparse.Namespace) -> Tally:
    """SIGKILL of one of two gateways under load; clients retry once."""
    shape = PoolShape(engine=args.engine, gateway={"gateways": 2})
    async with pool_under_load(shape, ExpectedAnswers(args.seed), seed=args.seed) as scene:
        scene.load.n_retries = 1
        pids = {name: scene.pool.pid_of(name) for name in scene.pool.workers}
        tally = await _meanwhile(scene, args.requests, _kill_gateways)
        same = all(scene.pool.pid_of(name) == pid for name, pid in pids.items())
        tally.notes.append(f"the workers are {'the same' if same else 'NOT the same'}")
        return tally


async def _kill_gateways(scene: Scene) -> None:
    for name in scene.pool.gateways:
        since = len(scene.pool.lines)
        scene.signal(name)
        await scene.back(name, since=since)
        await scene.load.answers(50)


async def reload(args: argparse.Namespace) -> Tally:
    """SIGHUP under load: a new gateway takes over from the old one."""
    shape = PoolShape(engine=args.engine)
    async with pool_under_load(shape, ExpectedAnswers(args.seed), seed=args.seed) as scene:
        old = scene.pool.pid_of(scene.pool.gateways[0])

        async def hang_up(scene: Scene) -> None:
            since = len(scene.pool.lines)
            scene.pool.process.send_signal(signal.SIGHUP)
            await scene.back(scene.pool.gateways[0], since=since)

        tally = await _meanwhile(scene, args.requests, hang_up)
        new = scene.pool.pid_of(scene.pool.gateways[0])
        tally.notes.append(
            f"the gateway {'is another' if new != old else 'is NOT another'} process"
        )
        return tally


async def rollout(args: argparse.Namespace) -> Tally:
    """`llamapool rollout` of all workers under load, then one with a wrong golden prompt."""
    shape = PoolShape(engine=args.engine, n_workers=3, more=SHORT_PROBATION)
    async with pool_under_load(shape, ExpectedAnswers(args.seed), seed=args.seed) as scene:
        tally = await _meanwhile(scene, args.requests, _roll)
        before = await _workers(scene)
        answer = await admin(scene, "rollout", "--golden", "Hello", *_WRONG, "--wait")
        after = await _workers(scene)
        is_back = answer.code == 1 and after == before
        tally.notes.append(
            f"a wrong golden answer goes back by itself: {'yes' if is_back else 'NO'}"
        )
        return tally


SHORT_PROBATION = "[rollout]\nprobation_s = 1.0\n"
"""Configuration of a rolling change that goes on at once."""
_WRONG = ("--golden-answer", "no model answers this")


async def _roll(scene: Scene) -> None:
    """Replace all workers as an admin would, in both ways."""
    for surge in ("on", "off"):
        answer = await admin(scene, "rollout", "--golden", "Hello", "--surge", surge, "--wait")
        found = orjson.loads((await admin(scene, "status", "--json")).text)["rollout"]
        print(
            f"--surge {surge}: {found['n_done']} of {found['n_total']} workers replaced in "
            f"{found['seconds']:g} s, {found['least_serving']} of {found['n_before']} served at "
            "any time"
        )
        if answer.code or found["least_serving"] < found["n_before"] - 1:
            raise SystemExit(f"llamapool rollout failed: {answer.text}")


class AdminAnswer(NamedTuple):
    """What a command of an admin printed, and its exit code."""

    code: int
    text: str


async def admin(scene: Scene, *args: str) -> AdminAnswer:
    """Run `llamapool` as the admin of the pool."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "worker.admin", *args),
        *("--runtime-dir", str(scene.pool.folder / "run")),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return AdminAnswer(process.returncode, out.decode())


async def _workers(scene: Scene) -> dict[str, int]:
    """Return the processes of the workers by their names."""
    rows = orjson.loads((await admin(scene, "status", "--json")).text)["workers"]
    return {row["name"]: row["pid"] for row in rows}


async def _meanwhile(
    scene: Scene, n_requests: int, act: Callable[[Scene], Awaitable[None]]
) -> Tally:
    """Do something once, while requests run."""
    load = scene.load
    start_s = time.perf_counter()
    load.start(0)
    await load.answers(n_requests // 10, 600)
    acting = asyncio.ensure_future(act(scene))
    await load.answers(n_requests - n_requests // 10 - load.n_clients, 600)
    await acting
    tally = Tally(await load.stop())
    took_s = time.perf_counter() - start_s
    tally.notes.append(f"{len(tally.outcomes) / took_s:.0f} requests a second")
    return tally
