"""Faults that leave a pool running: what `llamapool soak` draws from, and the fault matrix too."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson

from gateway.bench.client.connection import BenchConnection, Client, RequestFailed
from gateway.soak.network_faults import down_for_a_moment, down_for_long, one_reset, slow_line
from gateway.soak.scene import Scene

_SEEN_WITHIN_S = 1.0
"""Longest time until a gateway notices a killed worker, in seconds; usually milliseconds."""
_STOPPED_S = 1.0
"""Seconds; shorter than any time-out of the pool."""


async def kill(scene: Scene, name: str, number: signal.Signals = signal.SIGKILL) -> None:
    """End a worker with a signal, and wait for its successor."""
    since, start_s = len(scene.pool.lines), time.monotonic()
    scene.signal(name, number)
    await scene.pool.wait_for(rf"worker lost worker=(\S+/)?{name} ", 10, since=since)
    late_s = time.monotonic() - start_s
    scene.expect(late_s < _SEEN_WITHIN_S, f"the gateway saw the death after {late_s:.1f} s")
    await scene.back(name, since=since)


async def break_inside(scene: Scene, name: str, what: str) -> None:
    """Make a worker with the fake backend break inside a batch, and wait for its successor."""
    since = len(scene.pool.lines)
    scene.pool.order(name, what)
    await scene.pool.wait_for(rf"process (died|drained) child=(\S+/)?{name} ", 40, since=since)
    await scene.back(name, since=since)


async def fail_step(scene: Scene, name: str) -> None:
    """Make one batch of a worker with the fake backend fail; the worker must go on."""
    since = len(scene.pool.lines)
    scene.pool.order(name, "raise")
    await scene.pool.wait_for("asked to raise", 20, since=since)
    await scene.load.pieces(50)
    scene.expect(scene.pool.count("process died", since=since) == 0, "it died of one batch")


async def stop_shortly(scene: Scene, name: str) -> None:
    """Stop a worker for a second, which is shorter than any time-out, and let it go on."""
    since = len(scene.pool.lines)
    pid = scene.signal(name, signal.SIGSTOP)
    await asyncio.sleep(_STOPPED_S)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    await scene.load.pieces(100)
    scene.expect(is_alive(pid), "the worker was killed though it went on")
    scene.expect(scene.pool.count("worker lost", since=since) == 0, "it was given up")


async def kill_gateway(scene: Scene, name: str) -> None:
    """Kill a gateway; its workers stay."""
    since = len(scene.pool.lines)
    pids = [scene.pool.pid_of(worker) for worker in scene.pool.workers]
    scene.signal(name)
    await scene.pool.wait_for(rf"process ready child={name} ", 30, since=since)
    scene.expect(all(map(is_alive, pids)), "a worker ended with the gateway")


async def hang_up(scene: Scene, n: int = 50, *, after: int = 1, reset: bool = False) -> None:
    """Begin streams and leave each after some pieces of its answer, or at once with 0."""
    client = Client(scene.pool.url)
    body = {"prompt": "Nobody waits", "n_predict": 2000, "ignore_eos": True, "stream": True}
    data = orjson.dumps(body)

    async def leave() -> None:
        try:
            if after:
                connection, _ = await client.open("POST", "/completion", data)
                for _ in range(after):
                    await connection.more()
            else:
                opening = asyncio.ensure_future(client.open("POST", "/completion", data))
                await asyncio.wait([opening], timeout=scene.rng.uniform(0.0, 0.2))
                opening.cancel()
                connection, _ = await opening
        except asyncio.CancelledError:
            return  # it was left before the answer began
        except RequestFailed:
            return  # the pool was full, which is an answer too
        _leave(connection, reset=reset)

    await asyncio.gather(*(leave() for _ in range(n)))


def _leave(connection: BenchConnection, *, reset: bool) -> None:
    if reset:
        connection.reset()
    else:
        connection.close()


async def send_nonsense(scene: Scene) -> None:
    """Send bodies that are no requests; each must be a clean error of the client's."""
    client = Client(scene.pool.url)
    for number in range(20):
        body = scene.rng.randbytes(200) if number % 2 else b'{"prompt": ' + b"[" * 2000
        connection, status = await client.open("POST", "/completion", body)
        await connection.rest()
        connection.close()
        scene.expect(status == 400, f"nonsense was answered with {status}")


def is_alive(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class SoakFault:
    """A fault that a soak may draw."""

    name: str
    what: str
    inject: Callable[[Scene, str], Awaitable[None]]
    """Called with the name of a worker; of a gateway if `hits_gateway`."""
    kills: bool = True
    hits_gateway: bool = False
    needs_fake: bool = False
    needs_gate: bool = False
    """It is done to the worker behind the gate."""


SOAK_FAULTS = (
    SoakFault("kill", "SIGKILL of a worker", kill),
    SoakFault("segv", "SIGSEGV in a worker", lambda s, n: kill(s, n, signal.SIGSEGV)),
    SoakFault("raise", "one batch of a worker fails", fail_step, kills=False, needs_fake=True),
    SoakFault(
        "break",
        "all batches of a worker fail",
        lambda s, n: break_inside(s, n, "break"),
        needs_fake=True,
    ),
    SoakFault(
        "hold",
        "a worker is stuck in C",
        lambda s, n: break_inside(s, n, "hold 60"),
        needs_fake=True,
    ),
    SoakFault("stop", "SIGSTOP of a worker for 1 s", stop_shortly, kills=False),
    SoakFault("gateway", "SIGKILL of a gateway", kill_gateway, hits_gateway=True),
    SoakFault("leave", "50 clients hang up", lambda s, _: hang_up(s), kills=False),
    SoakFault(
        "leave at once",
        "50 clients hang up before an answer",
        lambda s, _: hang_up(s, after=0),
        kills=False,
    ),
    *(
        SoakFault(name, what, inject, kills=False, needs_gate=True)
        for name, what, inject in (
            ("link cut", "the link of a worker is down until it is given up", down_for_long),
            ("link break", "the link of a worker is down for 1 s", down_for_a_moment),
            ("link reset", "the link of a worker is reset", one_reset),
            ("link slow", "the link of a worker delays by 100 ms", slow_line),
        )
    ),
    SoakFault("nonsense", "bodies that are no JSON", lambda s, _: send_nonsense(s), kills=False),
)
