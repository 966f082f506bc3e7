"""Whether usage is what was computed, to the token.

A pool of three workers and two gateways answers requests; a third of the clients hang up at a
random token, two workers are killed meanwhile. Then three accounts are compared: the usage log, the
workers' own counters on /metrics, and what each fake engine has kept in a file that outlives it.

python -m benchmarks.usage [--requests 1000] [--kills 2] [--seed 16]
"""

import argparse
import asyncio
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from benchmarks.admin_socket import ask_admin
from gateway.bench.client.connection import Client, RequestFailed
from gateway.soak.pool import eventually
from gateway.soak.scene import ExpectedAnswers, PoolShape, Scene, pool_under_load
from gateway.usage.entry import Tokens, read_entry
from gateway.usage.log_file import PATTERN
from worker.engine.fake.record import RECORD_VARIABLE, Computed, read_records

_CLIENTS = 16


@dataclass(slots=True)
class Clients:
    """What the clients did and received."""

    scene: Scene
    rng: random.Random
    n_left: int
    n_done: int = 0
    n_hung_up: int = 0
    answered: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Tokens of prompt and answer as whole answers report them, by request id."""
    failed: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Ask one request after the other until all are asked."""
        client = Client(self.scene.pool.url)
        while self.n_left:
            self.n_left -= 1
            try:
                await self._ask(client, self.n_left)
            except RequestFailed as error:
                self.failed.append(error.message)
            self.n_done += 1

    async def _ask(self, client: Client, number: int) -> None:
        path, body = self._drawn(number)
        connection, status = await client.open("POST", path, orjson.dumps(body))
        try:
            if self.rng.random() < 1 / 3:
                self.n_hung_up += 1
                if body.get("stream"):
                    for _ in range(self.rng.randint(0, 12)):
                        await connection.more()
                else:
                    await asyncio.sleep(self.rng.uniform(0, 0.2))
                return
            request_id = connection.headers.get("x-request-id", "")
            if body.get("stream"):
                self._note(request_id, await _last_event(connection))
            else:
                answer = orjson.loads(await connection.rest())
                if status != 200:
                    self.failed.append(f"{status}: {answer}"[:200])
                elif "tokens_predicted" in answer:
                    self._note(request_id, answer)
        finally:
            connection.close()

    def _note(self, request_id: str, answer: dict[str, Any]) -> None:
        if "tokens_predicted" not in answer:
            self.failed.append(f"no end: {answer}"[:200])
            return
        self.answered[request_id] = answer["tokens_evaluated"], answer["tokens_predicted"]

    def _drawn(self, number: int) -> tuple[str, dict[str, Any]]:
        """Draw a request: mostly streams, some whole answers, some embeddings."""
        words = " ".join(f"{self.rng.randrange(10**6)}" for _ in range(self.rng.randint(2, 60)))
        shared = "You are a helpful assistant. " * self.rng.choice((0, 0, 8, 40))
        if number % 10 == 0:
            return "/v1/embeddings", {"input": [words, f"{number}"], "model": "fake"}
        body = {"prompt": f"{shared}{number}: {words}", "n_predict": self.rng.randint(5, 60)}
        streams = number % 10 != 1
        return "/completion", {**body, "ignore_eos": True, "stream": streams}


async def _last_event(connection: Any) -> dict[str, Any]:
    data = b""
    while piece := await connection.more():
        data += piece
    events = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
    found: dict[str, Any] = orjson.loads(events[-1]) if events else {}
    return found


async def _killing(scene: Scene, clients: Clients, n_kills: int, n: int) -> list[int]:
    """Kill workers, evenly spread over the requests; returns their processes."""
    killed: list[int] = []
    for number in range(n_kills):
        goal = (number + 1) * n // (n_kills + 1)
        while clients.n_done < goal:  # noqa: ASYNC110 - a measurement, not a test
            await asyncio.sleep(0.005)
        name = scene.pool.workers[number % len(scene.pool.workers)]
        since = len(scene.pool.lines)
        killed.append(scene.signal(name))
        await scene.back(name, since=since)
    return killed


async def _settled(scene: Scene) -> None:
    async def is_settled() -> bool:
        return not (await ask_admin(scene.pool, "/admin/requests"))["requests"]

    if not await eventually(is_settled, 30):
        raise SystemExit("requests did not settle")
    await asyncio.sleep(0.6)  # two heartbeats


def _logged(folder: Path) -> tuple[Tokens, dict[str, Tokens]]:
    """Add up the lines of the log; returns the sum, and the lines by request id."""
    total, by_id = Tokens(), {}
    for path in (folder / "usage").glob(PATTERN):
        for line in path.read_bytes().splitlines():
            entry = read_entry(line)
            total = total.plus(entry.tokens)
            by_id[orjson.loads(line).get("request_id", "")] = entry.tokens
    return total, by_id


async def measure(n_requests: int, n_kills: int, seed: int) -> int:
    """Run it and print the accounts; returns the exit code."""
    shape = PoolShape(
        n_workers=3,
        gateway={"gateways": 2, "usage_dir": "{folder}/usage"},
        worker={"n_slots": 8, "n_batch": 2048},
        env={RECORD_VARIABLE: "{folder}/record"},
    )
    async with pool_under_load(shape, ExpectedAnswers(seed), seed=seed) as scene:
        folder = scene.pool.folder
        clients = Clients(scene, random.Random(seed), n_requests)
        killing = asyncio.create_task(_killing(scene, clients, n_kills, n_requests))
        await asyncio.gather(*(clients.run() for _ in range(_CLIENTS)))
        killed = await killing
        await _settled(scene)
        asked = (await ask_admin(scene.pool, "/admin/usage?by=model"))["total"]
        counters = [
            int(await scene.pool.metric(f"llamapool_{name}_tokens_total"))
            for name in ("prompt", "cached", "predicted")
        ]
        total, by_id = _logged(folder)
        records = read_records(folder / "record")
    print(f"{n_requests} requests, {clients.n_hung_up} hung up, {len(killed)} workers killed")
    is_well = _report(total, asked, counters, records)
    wrong = [i for i, counts in clients.answered.items() if _paid(by_id.get(i)) != counts]
    n = len(clients.answered)
    print(f"{n - len(wrong)} of {n} whole answers have the counts in the log that the client got")
    for one in (*wrong[:5], *clients.failed[:5]):
        print("   ", one, clients.answered.get(one), by_id.get(one))
    return 0 if is_well and not wrong and not clients.failed else 1


def _paid(tokens: Tokens | None) -> tuple[int, int]:
    return (tokens.prompt, tokens.completion) if tokens is not None else (-1, -1)


def _report(
    total: Tokens,
    asked: dict[str, Any],
    counters: Sequence[int],
    records: dict[int, Computed],
) -> bool:
    """Print the accounts; return whether they agree."""
    n_read = sum(one.n_read for one in records.values())
    n_sampled = sum(one.n_sampled for one in records.values())
    print(f"{'':32}{'prompt':>10}{'cached':>10}{'generated':>10}")
    rows = (
        ("usage log", total.read, total.reused, total.generated),
        ("GET /admin/usage", *(asked["computed"][f"{n}_tokens"] for n in _NAMES)),
        ("workers' counters on /metrics", *counters),
        (f"engines' records ({len(records)} processes)", n_read, "", n_sampled),
        ("paid by clients", total.prompt, total.cached, total.completion),
    )
    for name, *numbers in rows:
        print(f"{name:32}" + "".join(f"{one:>10}" for one in numbers))
    is_computed = (n_read, n_sampled) == (total.read, total.generated)
    return is_computed and rows[0][1:] == rows[1][1:] == rows[2][1:]


_NAMES = ("prompt", "cached", "completion")


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=16)
    args = parser.parse_args()
    return asyncio.run(measure(args.requests, args.kills, args.seed))


if __name__ == "__main__":
    sys.exit(main())
