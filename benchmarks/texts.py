"""How often a greedy text differs, and whether rounding or a fault in continuing it is the cause.

python -m benchmarks.texts [--answers 64] [--only killed]

The real model is asked one greedy prompt again and again: alone, in company, in company without its
cached prompt, while workers are killed, and while all are replaced one after the other. Then
each token of each text is judged by the model alone, which reads the prompt and the tokens before
it: how much less likely than the best one it is, as a difference of logarithms. Rounding turns near
ties only.
"""

import argparse
import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from statistics import median
from typing import Any

import orjson

from benchmarks.fleet.changes import SHORT_PROBATION, admin
from gateway.bench.client.connection import Client
from gateway.soak.scene import ExpectedAnswers, PoolShape, Scene, pool_under_load

PROMPT = "The river ran past a mill where two brothers kept bees. One morning"
N_TOKENS = 48
_AT_ONCE = 4
_KILLS = 6
"""Two workers may die so often together before the supervisor would set one aside."""

Text = tuple[int, ...]


async def fetch(client: Client, **body: Any) -> dict[str, Any]:
    """Ask for a native completion."""
    return dict(orjson.loads(await client.fetch("POST", "/completion", orjson.dumps(body))))


async def texts(scene: Scene, n: int, at_once: int, **more: Any) -> list[Text]:
    """Ask the prompt `n` times; returns the tokens of each answer."""
    found: list[Text] = []
    asked = {"prompt": PROMPT, "n_predict": N_TOKENS, "temperature": 0, "ignore_eos": True}

    async def take_turns() -> None:
        client = Client(scene.pool.url)
        while len(found) < n:
            answer = await fetch(client, **asked, return_tokens=True, **more)
            found.append(tuple(answer["tokens"]))

    await asyncio.gather(*(take_turns() for _ in range(at_once)))
    return found[:n]


@contextlib.asynccontextmanager
async def company(scene: Scene) -> AsyncIterator[None]:
    """Keep four other streams running."""

    async def go_on(number: int) -> None:
        client = Client(scene.pool.url)
        for turn in range(10_000):
            prompt = f"{number} {turn * 7919} Tell me of the sea. "
            await fetch(
                client, prompt=prompt, n_predict=20 + 9 * number, ignore_eos=True, seed=turn
            )

    running = [asyncio.create_task(go_on(number)) for number in range(4)]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def while_killed(scene: Scene, n: int) -> list[Text]:
    """Ask while one worker after the other is killed, and comes back."""
    asking = asyncio.create_task(texts(scene, n, _AT_ONCE))
    n_kills = 0
    while not asking.done() and n_kills < _KILLS:
        name = scene.pool.workers[n_kills % 2]
        since = len(scene.pool.lines)
        scene.signal(name)
        await scene.back(name, since=since)
        await asyncio.sleep(scene.rng.uniform(0.2, 1.0))
        n_kills += 1
    found = await asking
    print(f"    {n_kills} kills, {await _moved(scene):g} tasks went on at another worker so far")
    return found


async def _moved(scene: Scene) -> float:
    return await scene.pool.metric("llamapool_continued_tasks_total")


async def while_replaced(scene: Scene, n: int) -> list[Text]:
    """Ask while all workers are replaced again and again."""
    asking = asyncio.create_task(texts(scene, n, _AT_ONCE))
    n_rounds = 0
    while not asking.done():
        result = await admin(scene, "rollout", "--golden", "Hello", "--surge", "off", "--wait")
        if result.code:
            raise SystemExit(f"llamapool rollout failed: {result.text}")
        n_rounds += 1
    moved = await _moved(scene)
    print(f"    {n_rounds} rolling changes, {moved:g} tasks went on at another worker so far")
    return await asking


class Judge:
    """Says how far a token is from the best one, as the model alone sees it."""

    def __init__(self, client: Client, prompt: Sequence[int]) -> None:
        self._client = client
        self._prompt = list(prompt)
        self._known: dict[Text, dict[int, float]] = {}

    async def gaps(self, text: Text) -> list[float]:
        """Return the distance of each token to the best one at its place; inf if beyond 100."""
        return [await self._gap(text[:i], token) for i, token in enumerate(text)]

    async def _gap(self, before: Text, token: int) -> float:
        if before not in self._known:
            prompt = [*self._prompt, *before]
            more = {"n_predict": 1, "n_probs": 100, "temperature": 0, "cache_prompt": False}
            answer = await fetch(self._client, prompt=prompt, ignore_eos=True, **more)
            top = answer["completion_probabilities"][0]["top_logprobs"]
            self._known[before] = {one["id"]: one["logprob"] for one in top}
        logprobs = self._known[before]
        return max(logprobs.values()) - logprobs.get(token, float("-inf"))


async def report_texts(name: str, found: Sequence[Text], alone: Text, judge: Judge) -> None:
    """Print how many texts there are, where they part, and how near the ties were."""
    counts = Counter(found)
    parted, worst = [], []
    for text in counts:
        gaps = await judge.gaps(text)
        worst.append(max(gaps))
        place = next((i for i in range(N_TOKENS) if text[i] != alone[i]), None)
        if place is not None:
            parted.append((place, gaps[place]))
    print(f"{name}: {len(counts)} texts in {len(found)}, {counts[alone]} as alone")
    print(f"    greatest distance of any token to the model's best: {max(worst):.3f}")
    if parted:
        near = [gap for _, gap in parted]
        places = sorted({place for place, _ in parted})
        print(f"    they part at token {places}, p50 {median(near):.3f} from the best")


async def measure(n: int, only: str) -> None:
    """Ask in every way, then judge."""
    shape = PoolShape(engine="model", n_workers=2, more=SHORT_PROBATION)
    ways: dict[str, Callable[[Scene], Awaitable[list[Text]]]] = {
        "in company": lambda scene: texts(scene, n, _AT_ONCE),
        "in company, the prompt read each time": lambda scene: texts(
            scene, n, _AT_ONCE, cache_prompt=False
        ),
        "in company, while workers are killed": lambda scene: while_killed(scene, n),
        "in company, while workers are replaced": lambda scene: while_replaced(scene, n),
    }
    async with pool_under_load(shape, ExpectedAnswers(1), seed=1) as scene:
        client = Client(scene.pool.url)
        body = orjson.dumps({"content": PROMPT, "add_special": True})
        prompt = orjson.loads(await client.fetch("POST", "/tokenize", body))["tokens"]
        (alone,) = await texts(scene, 1, 1, cache_prompt=False)
        found = {"alone": await texts(scene, 8, 1)}
        for name, way in ways.items():
            if only not in name:
                continue
            print(name, flush=True)
            async with company(scene):
                found[name] = await way(scene)
        judge = Judge(client, prompt)
        for name, each in found.items():
            await report_texts(name, each, alone, judge)


def main() -> int:
    """Run the measurement and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=64, help="in each way")
    parser.add_argument("--only", default="", help="word of the ways to ask in")
    args = parser.parse_args()
    asyncio.run(measure(args.answers, args.only))
    return 0


if __name__ == "__main__":
    sys.exit(main())
