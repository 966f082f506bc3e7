"""What clients of a pool notice when its processes end, change or multiply.

python -m benchmarks.fleet kills|gateway|reload|rollout|cancel|cache|index [--engine model]
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from benchmarks.fleet.changes import gateway, reload, rollout
from benchmarks.fleet.kills import kills
from benchmarks.fleet.tally import Tally, latencies
from gateway.bench.client.connection import Client
from gateway.soak.asking import ask
from gateway.soak.pool import eventually
from gateway.soak.requests import SoakRequest
from gateway.soak.scene import ENGINES, ExpectedAnswers, PoolShape, Scene, pool_under_load


async def cancel(args: argparse.Namespace) -> Tally:
    """From a client's hanging up to the first token of who waited for its slot."""
    shape = PoolShape(engine=args.engine, n_workers=1, worker={"n_slots": 1, "n_prefetch": 1})
    waits: list[float] = []
    tally = Tally()
    async with pool_under_load(shape, ExpectedAnswers(args.seed), seed=args.seed) as scene:
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
            outcome = await waiting
            tally.outcomes.append(outcome)
            waits += [outcome.arrivals_s[0] - left_s] if outcome.arrivals_s else []
    tally.notes.append(latencies("from hanging up to the next one's first token", waits))
    return tally


async def cache(args: argparse.Namespace) -> Tally:
    """Tokens found in the cache, over conversations: two gateways against one."""
    tally, shares = Tally(), {}
    for n_gateways in (1, 2):
        worker: dict[str, float] = {"n_ctx": 1 << 14}
        if args.engine == "fake":  # the routing compares seconds: reading must take some
            worker = {"n_ctx": 1 << 16, "fake_token_ms": 1.0}
        several = {"gateways": n_gateways} if n_gateways > 1 else {}
        shape = PoolShape(engine=args.engine, n_workers=4, gateway=several, worker=worker)
        async with pool_under_load(shape, ExpectedAnswers(args.seed), seed=args.seed) as scene:
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
        answer = orjson.loads(await client.fetch("POST", "/completion", orjson.dumps(body)))
        found.append((answer["tokens_evaluated"], answer["timings"]["cache_n"]))
        text += answer["content"] + f" And then, {turn}? "
        await asyncio.sleep(0.02)
    return found


async def index(args: argparse.Namespace) -> Tally:
    """From a new gateway's first answer to its first choice by what is cached."""
    tally = Tally()
    shape = PoolShape(engine=args.engine, n_workers=4)
    async with pool_under_load(shape, ExpectedAnswers(1), seed=1) as scene:
        client = Client(scene.pool.url)
        long = SoakRequest("long", 0, "/completion", {"prompt": "Once upon " * 60, "n_predict": 1})
        first = await ask(client, long)
        where = first.headers.get("x-llamapool-worker")
        since = len(scene.pool.lines)
        scene.signal(scene.pool.gateways[0])
        await scene.pool.wait_for("process ready child=gateway", since=since)
        start_s = time.perf_counter()

        async def is_found() -> bool:
            outcome = await ask(client, long)
            by_cache = outcome.headers.get("x-llamapool-route") == "prefix"
            return by_cache and outcome.headers.get("x-llamapool-worker") == where

        is_well = await eventually(is_found, 20)
        late_s = time.perf_counter() - start_s
        tally.notes.append(f"the index is {'back' if is_well else 'NOT back'} after {late_s:.2f} s")
        tally.outcomes.append(await ask(client, long))
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
    parser.add_argument("--first", type=int, default=0, help="of kills: number of the first kill")
    args = parser.parse_args()

    async def run() -> Tally:
        return await COMMANDS[args.what](args)

    return asyncio.run(run()).show()


if __name__ == "__main__":
    sys.exit(main())
