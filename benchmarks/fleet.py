"""What clients of a pool notice when its processes end, change or multiply.

python -m benchmarks.fleet kills|gateway|reload|rollout|cancel|cache|index [--engine model]
"""

import argparse
import asyncio
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from gateway.bench.client.connection import Client
from gateway.soak.asking import Ending, Heard, ask
from gateway.soak.pool import eventually
from gateway.soak.requests import KINDS, SoakRequest
from gateway.soak.scene import ENGINES, PoolShape, Rehearsal, Scene, staged

_KILLS_A_POOL = 6
"""Two workers may die so often together before the supervisor would set one aside."""
_STREAMS = tuple(kind for kind in KINDS if "whole" not in kind and kind != "embeddings")


@dataclass(slots=True)
class Tally:
    """What became of requests."""

    heard: list[Heard] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def counts(self) -> str:
        """Write the counts of all endings."""
        found = Counter(one.ending for one in self.heard)
        told = ", ".join(f"{found[one]} {one}" for one in Ending)
        return f"{len(self.heard)} requests: {told}"

    def tell(self) -> int:
        """Print it; returns the exit code."""
        for line in self.notes:
            print(line)
        print(self.counts())
        bad = [one for one in self.heard if one.ending is not Ending.ANSWERED]
        for one in bad[:10]:
            print(f"    {one.request.name} {one.ending}: {one.why[:300]}")
        return 1 if bad else 0


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that so great a share lies at or below; 0 without any."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def spread(name: str, values: Sequence[float]) -> str:
    """Write median, p99 and greatest in milliseconds."""
    told = " ".join(
        f"{n} {quantile(values, q) * 1e3:.0f}" for n, q in (("p50", 0.5), ("p99", 0.99))
    )
    return f"{name} in ms: {told} max {max(values, default=0.0) * 1e3:.0f} (of {len(values)})"


async def kills(args: argparse.Namespace) -> Tally:
    """SIGKILL of one of two workers under 8 streams, at random tokens."""
    tally, rehearsal, n_done = Tally(), Rehearsal(args.seed), 0
    gaps: list[float] = []
    others: list[float] = []
    while n_done < args.times:
        shape = PoolShape(engine=args.engine)
        async with staged(shape, rehearsal, seed=args.seed + n_done) as scene:
            load = scene.load
            load.requests = [one for one in load.requests if one.kind in _STREAMS]
            load.start(args.seed + n_done)
            struck: list[tuple[float, str]] = []
            for _ in range(min(_KILLS_A_POOL, args.times - n_done)):
                await scene.at_a_random_token()
                name = sorted(scene.pool.workers)[n_done % 2]
                since = len(scene.pool.lines)
                struck.append((time.perf_counter(), name))
                scene.signal(name)
                await scene.back(name, since=since)
                n_done += 1
            tally.heard += await load.stop()
            for one in load.heard:
                _sort_gap(one, struck, gaps, others)
    tally.notes.append(f"{n_done} kills")
    tally.notes.append(spread("longest gap of streams whose worker was killed", gaps))
    tally.notes.append(spread("longest gap of all other streams", others))
    return tally


def _sort_gap(
    one: Heard, struck: Sequence[tuple[float, str]], gaps: list[float], others: list[float]
) -> None:
    """Note the longest silence of a stream, with those that lost a worker or with the others."""
    if len(one.arrivals_s) < 2:
        return
    worker = one.headers.get("x-llamapool-worker", "").rpartition("/")[2]
    is_hit = any(
        one.arrivals_s[0] < at_s < one.arrivals_s[-1] and name == worker for at_s, name in struck
    )
    (gaps if is_hit else others).append(one.longest_gap_s)


async def gateway(args: argparse.Namespace) -> Tally:
    """SIGKILL of one of two gateways under load; clients retry once."""
    shape = PoolShape(engine=args.engine, gateway={"gateways": 2})
    async with staged(shape, Rehearsal(args.seed), seed=args.seed) as scene:
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
    async with staged(shape, Rehearsal(args.seed), seed=args.seed) as scene:
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
    async with staged(shape, Rehearsal(args.seed), seed=args.seed) as scene:
        tally = await _meanwhile(scene, args.requests, _roll)
        before = await _workers(scene)
        told = await admin(scene, "rollout", "--golden", "Hello", *_WRONG, "--wait")
        after = await _workers(scene)
        is_back = told.code == 1 and after == before
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
        told = await admin(scene, "rollout", "--golden", "Hello", "--surge", surge, "--wait")
        found = orjson.loads((await admin(scene, "status", "--json")).text)["rollout"]
        print(
            f"--surge {surge}: {found['n_done']} of {found['n_total']} workers replaced in "
            f"{found['seconds']:g} s, {found['least_serving']} of {found['n_before']} served at "
            "any time"
        )
        if told.code or found["least_serving"] < found["n_before"] - 1:
            raise SystemExit(f"llamapool rollout failed: {told.text}")


class Told(NamedTuple):
    """What a command of an admin printed, and its exit code."""

    code: int
    text: str


async def admin(scene: Scene, *args: str) -> Told:
    """Run `llamapool` as the admin of the pool."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "worker.admin", *args),
        *("--runtime-dir", str(scene.pool.folder / "run")),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return Told(process.returncode, out.decode())


async def _workers(scene: Scene) -> dict[str, int]:
    """Return the processes of the workers by their names."""
    rows = orjson.loads((await admin(scene, "status", "--json")).text)["workers"]
    return {row["name"]: row["pid"] for row in rows}


async def _meanwhile(
    scene: Scene, n_requests: int, act: Callable[[Scene], Awaitable[None]]
) -> Tally:
    """Do something once, while so many requests are asked."""
    load = scene.load
    start_s = time.perf_counter()
    load.start(0)
    await load.answers(n_requests // 10, 600)
    acting = asyncio.ensure_future(act(scene))
    await load.answers(n_requests - n_requests // 10 - load.n_clients, 600)
    await acting
    tally = Tally(await load.stop())
    took_s = time.perf_counter() - start_s
    tally.notes.append(f"{len(tally.heard) / took_s:.0f} requests a second")
    return tally


async def cancel(args: argparse.Namespace) -> Tally:
    """From a client's hanging up to the first token of who waited for its slot."""
    shape = PoolShape(engine=args.engine, n_workers=1, worker={"n_slots": 1, "n_prefetch": 1})
    waits: list[float] = []
    tally = Tally()
    async with staged(shape, Rehearsal(args.seed), seed=args.seed) as scene:
        client = Client(scene.pool.url)
        endless = {"prompt": "On and on", "n_predict": 20_000, "ignore_eos": True, "stream": True}
        for number in range(args.times):
            connection, _ = await client.open("POST", "/completion", orjson.dumps(endless))
            for _ in range(scene.rng.randint(2, 30)):
                await connection.more()
            body = {"prompt": f"{number} waits", "n_predict": 2, "temperature": 0, "stream": True}
            request = SoakRequest("waiting", number, "/completion", body)
            waiting = asyncio.create_task(ask(client, request))
            await asyncio.sleep(0.05)  # it is in the queue by now
            left_s = time.perf_counter()
            connection.close()
            heard = await waiting
            tally.heard.append(heard)
            waits += [heard.arrivals_s[0] - left_s] if heard.arrivals_s else []
    tally.notes.append(spread("from hanging up to the next one's first token", waits))
    return tally


async def cache(args: argparse.Namespace) -> Tally:
    """Tokens found in the cache, over conversations: two gateways against one."""
    tally, shares = Tally(), {}
    for n_gateways in (1, 2):
        worker = {"n_ctx": 1 << 16} if args.engine == "fake" else {"n_ctx": 1 << 14}
        several = {"gateways": n_gateways} if n_gateways > 1 else {}
        shape = PoolShape(engine=args.engine, n_workers=4, gateway=several, worker=worker)
        async with staged(shape, Rehearsal(args.seed), seed=args.seed) as scene:
            talks = [_talk(scene, number, tally) for number in range(24)]
            found = [row for rows in await asyncio.gather(*talks) for row in rows]
        n_prompt, n_cached = (sum(column) for column in zip(*found, strict=True))
        shares[n_gateways] = n_cached / n_prompt
        tally.notes.append(f"{n_gateways} gateways: {n_cached} of {n_prompt} prompt tokens cached")
    tally.notes.append(f"two against one: {shares[2] / shares[1]:.1%}")
    return tally


async def _talk(scene: Scene, number: int, tally: Tally) -> list[tuple[int, int]]:
    """Hold one conversation; returns prompt tokens and cached ones of each turn."""
    client, found = Client(scene.pool.url), []
    text = f"{number} {number * 7919} begins. " + "You are a helpful assistant. " * 12
    for turn in range(6):
        body = {"prompt": text, "n_predict": 24, "temperature": 0, "ignore_eos": True}
        told = orjson.loads(await client.fetch("POST", "/completion", orjson.dumps(body)))
        found.append((told["tokens_evaluated"], told["timings"]["cache_n"]))
        text += told["content"] + f" And then, {turn}? "
        await asyncio.sleep(0.02)
    return found


async def index(args: argparse.Namespace) -> Tally:
    """From a new gateway's first answer to its first choice by what is cached."""
    tally = Tally()
    async with staged(PoolShape(engine=args.engine, n_workers=4), Rehearsal(1), seed=1) as scene:
        client = Client(scene.pool.url)
        long = SoakRequest("long", 0, "/completion", {"prompt": "Once upon " * 60, "n_predict": 1})
        first = await ask(client, long)
        where = first.headers.get("x-llamapool-worker")
        since = len(scene.pool.lines)
        scene.signal(scene.pool.gateways[0])
        await scene.pool.wait_for("process ready child=gateway", since=since)
        start_s = time.perf_counter()

        async def is_found() -> bool:
            heard = await ask(client, long)
            by_cache = heard.headers.get("x-llamapool-route") == "prefix"
            return by_cache and heard.headers.get("x-llamapool-worker") == where

        is_well = await eventually(is_found, 20)
        late_s = time.perf_counter() - start_s
        tally.notes.append(f"the index is {'back' if is_well else 'NOT back'} after {late_s:.2f} s")
        tally.heard.append(await ask(client, long))
    return tally


COMMANDS: dict[str, Callable[[Any], Awaitable[Tally]]] = {
    one.__name__: one for one in (kills, gateway, reload, rollout, cancel, cache, index)
}


def main() -> int:
    """Run one measurement and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("--engine", choices=ENGINES, default="fake")
    parser.add_argument("--times", type=int, default=50, help="of kills and cancel")
    parser.add_argument("--requests", type=int, default=2000, help="of gateway, reload and rollout")
    parser.add_argument("--seed", type=int, default=15)
    args = parser.parse_args()

    async def run() -> Tally:
        return await COMMANDS[args.what](args)

    return asyncio.run(run()).tell()


if __name__ == "__main__":
    sys.exit(main())
