"""Group A: what happens to processes."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from gateway.bench.client.connection import Client
from gateway.soak import faults
from gateway.soak.asking import Ending, ask
from gateway.soak.faults import SoakFault
from gateway.soak.pool import eventually
from gateway.soak.requests import KINDS, SoakRequest, TrafficShape
from gateway.soak.scene import PoolShape, Scene
from tests.faults.case import FaultCase, Inject

WHOLE = tuple(kind for kind in KINDS if "whole" in kind or kind in ("text-n2", "embeddings"))
STREAMED = tuple(kind for kind in KINDS if kind not in WHOLE)
STALL = {"stall_s": 2.0}
ONE = PoolShape(n_workers=1)


def hit(fault: SoakFault) -> Inject:
    """A fault that a soak draws, with a victim of chance."""

    async def inject(scene: Scene) -> None:
        names = scene.pool.gateways if fault.hits_gateway else scene.pool.workers
        await fault.inject(scene, scene.rng.choice(names))

    return inject


async def stop_for_good(scene: Scene, name: str) -> None:
    """It must be killed and replaced."""
    since = len(scene.pool.lines)
    pid = scene.signal(name, signal.SIGSTOP)
    await scene.pool.wait_for(rf"process died child=(\S+/)?{name} ", 40, since=since)
    scene.expect(not faults.is_alive(pid), "the stopped process is still there")
    await scene.back(name, since=since)


def on_worker(inject: Callable[[Scene, str], Awaitable[None]]) -> Inject:
    """A fault of a worker, drawn by chance."""
    return hit(SoakFault("", "", inject))


def killed(number: signal.Signals = signal.SIGKILL) -> Inject:
    """A worker gets a signal that ends it."""
    return on_worker(lambda scene, name: faults.kill(scene, name, number))


def ordered(what: str) -> Inject:
    """A worker breaks in a way of its own, inside a batch."""
    return on_worker(lambda scene, name: faults.break_inside(scene, name, what))


async def soon_back(scene: Scene, name: str) -> None:
    start_s = time.monotonic()
    await faults.kill(scene, name)
    took_s = time.monotonic() - start_s
    scene.expect(took_s < 5, f"it took {took_s:.1f} s")


async def all_killed(scene: Scene) -> None:
    since = len(scene.pool.lines)
    for name in scene.pool.workers:
        scene.signal(name)
    for name in scene.pool.workers:
        await scene.back(name, since=since)


async def poisoned(scene: Scene) -> None:
    since = len(scene.pool.lines)
    body = {"prompt": "Poison [[die]]", "n_predict": 4, "temperature": 0}
    request = SoakRequest("poison", 0, "/completion", body)
    client = Client(scene.pool.url)
    outcome = await ask(client, request)
    scene.expect(
        outcome.ending is Ending.REFUSED, f"the poison was {outcome.ending}: {outcome.why}"
    )
    scene.expect(outcome.headers.get("x-should-retry") == "false", "a retry was not forbidden")
    again = await ask(client, request)
    scene.expect(again.status == 422, f"asked again, it was {again.status}: {again.why}")
    for name in scene.pool.workers:
        await scene.back(name, since=0)
    n_deaths = scene.pool.count("process died", since=since)
    scene.expect(n_deaths == 2, f"{n_deaths} workers died of it")


async def crash_loop(scene: Scene) -> None:
    """Let one worker die at each load until it is set aside; the other serves."""
    name, since = scene.rng.choice(scene.pool.workers), len(scene.pool.lines)
    scene.pool.order(f"{name}.loading", "exit 1")
    scene.signal(name)
    await scene.pool.wait_for(rf"process quarantined child=(\S+/)?{name} ", 60, since=since)
    n_deaths = scene.pool.count(rf"process died child=(\S+/)?{name} ", since=since)
    scene.expect(n_deaths in (4, 5), f"it died {n_deaths} times before it was set aside")


async def reloaded(scene: Scene) -> None:
    """Send SIGHUP: another process takes the gateway's place."""
    name, since = scene.pool.gateways[0], len(scene.pool.lines)
    old = scene.pool.pid_of(name)
    scene.pool.process.send_signal(signal.SIGHUP)
    await scene.back(name, since=since)
    scene.expect(scene.pool.pid_of(name) != old, "the gateway is the same process")


async def reloaded_in_vain(scene: Scene) -> None:
    """Send SIGHUP with a configuration that is wrong: all goes on as before."""
    path, since = scene.pool.folder / "pool.toml", len(scene.pool.lines)
    old = scene.pool.pid_of(scene.pool.gateways[0])
    path.write_text(path.read_text() + "nonsense = 1\n")
    scene.pool.process.send_signal(signal.SIGHUP)
    await scene.load.answers(16)
    scene.expect(scene.pool.pid_of(scene.pool.gateways[0]) == old, "the gateway was replaced")
    told = [line for line in scene.pool.lines[since:] if "nonsense" in line]
    scene.expect(bool(told), "the log does not say what is wrong")


async def rolled_out(scene: Scene) -> None:
    """Replace all workers, one after the other, as an admin does."""
    pids = [scene.pool.pid_of(name) for name in scene.pool.workers]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "worker.admin", "rollout", "--wait"),
        *("--runtime-dir", str(scene.pool.folder / "run")),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, told = await asyncio.wait_for(process.communicate(), 90)
    scene.expect(process.returncode == 0, f"exit code {process.returncode}: {told!r}")
    scene.expect(not any(map(faults.is_alive, pids)), "an old worker is still there")


async def supervisor_killed(scene: Scene) -> None:
    scene.pool.process.send_signal(signal.SIGKILL)

    async def is_empty() -> bool:
        return not scene.pool.pids()

    scene.expect(await eventually(is_empty, 5), f"left over: {scene.pool.pids()}")
    await scene.load.stop()


def terminated(drain_s: float) -> Inject:
    """The service is asked to end while more is asked of it than it has slots for."""

    async def inject(scene: Scene) -> None:
        n_running = scene.load.n_started - len(scene.load.outcomes)
        n_ended = len(scene.load.outcomes)
        started = time.monotonic()
        ending = asyncio.create_task(scene.pool.stop(timeout_s=drain_s + 30))
        await scene.pool.wait_for("draining", 5)
        await scene.load.stop()
        code = await ending
        scene.expect(code == 0, f"exit code {code}")
        scene.expect(time.monotonic() - started < drain_s + 10, "it took longer than its limit")
        kept = [one for one in scene.load.outcomes[n_ended:] if one.ending is Ending.ANSWERED]
        scene.expect(len(kept) >= n_running, f"{len(kept)} of {n_running} running ones ended well")

    return inject


async def out_of_memory(scene: Scene) -> None:
    """Bound a worker's memory by a control group, and let it ask for more."""
    name, since = scene.rng.choice(scene.pool.workers), len(scene.pool.lines)
    group = Path("/sys/fs/cgroup/memory") / f"llamapool-{os.getpid()}"
    group.mkdir()
    try:
        limit = int(scene.pool.resident_mib()[name] + 64) << 20
        (group / "memory.limit_in_bytes").write_text(str(limit))
        (group / "cgroup.procs").write_text(str(scene.pool.pid_of(name)))
        scene.pool.order(name, "allocate 1024")
        found = await scene.pool.wait_for(rf"process died child=(\S+/)?{name} .*", 20, since=since)
        scene.expect("memory" in found[0], f"the cause is not told: {found[0]}")
        await scene.back(name, since=since)
    finally:
        group.rmdir()


async def drained_too_long(scene: Scene) -> None:
    """End the service while streams run that are longer than it may wait for them."""
    started = time.monotonic()
    ending = asyncio.create_task(scene.pool.stop(timeout_s=30))
    await scene.load.stop()
    code = await ending
    took_s = time.monotonic() - started
    scene.expect(code == 0, f"exit code {code}")
    scene.expect(1.5 < took_s < 6, f"it took {took_s:.1f} s")


async def terminated_twice(scene: Scene) -> None:
    stopping = asyncio.create_task(scene.pool.stop())
    await scene.pool.wait_for("draining", 5)
    scene.pool.process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    code = await stopping
    scene.expect(code == 1, f"exit code {code}")
    scene.expect(time.monotonic() - started < 3, "it did not end at once")
    await scene.load.stop()


gateway_killed = hit(SoakFault("", "", faults.kill_gateway, hits_gateway=True))
_CUT = TrafficShape(kinds=STREAMED)

CASES = [
    FaultCase(
        name="A1",
        what="SIGKILL of a worker, whole answers under way",
        inject=killed(),
        traffic=TrafficShape(kinds=WHOLE),
        is_shared=True,
    ),
    FaultCase(
        name="A2",
        what="SIGKILL of a worker, streams under way",
        inject=killed(),
        traffic=_CUT,
        is_shared=True,
    ),
    FaultCase(
        name="A3",
        what="SIGKILL of the only worker: everything waits for its successor",
        inject=killed(),
        pool=ONE,
        is_shared=True,
    ),
    FaultCase(
        name="A3 off",
        what="SIGKILL of a worker with `--no-continue`: streams that began end with an error event",
        inject=killed(),
        pool=PoolShape(gateway={"continues": False}),
        may_refuse=True,
    ),
    FaultCase(
        name="A4",
        what="SIGKILL of a worker: another process serves in its place within 5 s",
        inject=on_worker(soon_back),
    ),
    FaultCase(
        name="A5",
        what="SIGKILL of all workers at once",
        inject=all_killed,
        is_shared=True,
    ),
    FaultCase(
        name="A6",
        what="SIGSTOP of a worker for good: killed and replaced",
        inject=on_worker(stop_for_good),
        pool=PoolShape(worker=STALL),
    ),
    FaultCase(
        name="A6 short",
        what="SIGSTOP of a worker for 1 s: it goes on",
        inject=on_worker(faults.stop_shortly),
    ),
    FaultCase(
        name="A7",
        what="a worker stuck in C with the interpreter's lock held",
        inject=ordered("hold 60"),
        pool=PoolShape(worker=STALL),
        is_shared=True,
    ),
    FaultCase(
        name="A7 hang",
        what="a worker's engine hangs, its link goes on",
        inject=ordered("hang"),
        pool=PoolShape(worker=STALL),
    ),
    *(
        FaultCase(
            name=f"A9 {name}",
            what=what,
            inject=inject,
        )
        for name, what, inject in (
            ("SEGV", "SIGSEGV in a worker", killed(signal.SIGSEGV)),
            ("ABRT", "SIGABRT in a worker, as of a failed assertion", killed(signal.SIGABRT)),
            ("exit 0", "a worker exits with 0 inside a batch", ordered("exit 0")),
            ("raise", "one batch of a worker fails", on_worker(faults.fail_step)),
            ("break", "all batches of a worker fail", ordered("break")),
        )
    ),
    FaultCase(
        name="A8",
        what="the kernel kills a worker for its memory",
        inject=out_of_memory,
        needs_root=True,
    ),
    FaultCase(
        name="A10",
        what="a prompt that kills its worker: refused after two deaths",
        inject=poisoned,
        is_shared=True,
    ),
    FaultCase(
        name="A11",
        what="a worker dies at each load: set aside after five deaths, the other serves",
        inject=crash_loop,
    ),
    FaultCase(
        name="A12",
        what="SIGKILL of the only gateway: clients that retry once lose nothing",
        inject=gateway_killed,
        n_retries=1,
        is_shared=True,
    ),
    FaultCase(
        name="A12 two",
        what="SIGKILL of one of two gateways: clients that retry once lose nothing",
        inject=gateway_killed,
        pool=PoolShape(gateway={"gateways": 2}),
        n_retries=1,
        is_shared=True,
    ),
    FaultCase(
        name="A12 all",
        what="SIGKILL of the supervisor: what runs is cut, and nobody is left",
        inject=supervisor_killed,
        is_last=True,
        may_refuse=True,
        may_cut=True,
    ),
    FaultCase(
        name="A17",
        what="SIGHUP: a new gateway takes over from the old one",
        inject=reloaded,
        is_shared=True,
    ),
    FaultCase(
        name="A17 wrong",
        what="SIGHUP with a wrong configuration: everything goes on, and the log says why",
        inject=reloaded_in_vain,
    ),
    FaultCase(
        name="A18",
        what="all workers are replaced, one after the other (`llamapool rollout`)",
        inject=rolled_out,
    ),
    *(
        FaultCase(
            name=f"A13 {limit_s}",
            what=f"SIGTERM under load, `drain_timeout_s = {limit_s}`: what runs ends well",
            inject=terminated(limit_s),
            pool=PoolShape(gateway={"drain_timeout_s": limit_s}),
            n_clients=20,
            is_last=True,
            may_refuse=True,
            is_shared=limit_s == 10,
        )
        for limit_s in (10, 20)
    ),
    FaultCase(
        name="A14",
        what="SIGTERM, streams longer than `drain_timeout_s = 2`: an error event, then the end",
        inject=drained_too_long,
        pool=PoolShape(gateway={"drain_timeout_s": 2}),
        traffic=TrafficShape(kinds=("completion", "completion-seed"), n_min=1500, n_max=1600),
        is_last=True,
        may_refuse=True,
    ),
    FaultCase(
        name="A15",
        what="a second SIGTERM: the end at once, with code 1; what runs is cut",
        inject=terminated_twice,
        is_last=True,
        may_cut=True,
        may_refuse=True,
    ),
]
