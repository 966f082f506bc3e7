"""A client that keeps many requests open until SIGTERM.

`python -m benchmarks.fairness.flood URL KEY N` prints a line when it begins, and its counts at the
end. The normal keys use `ask`, too.
"""

import asyncio
import itertools
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from gateway.bench.client.connection import Client

N_ANSWER = 30
_WORDS = 30
_REFUSED_S = 0.05
"""Pause after a 429, in seconds; its `Retry-After` is ignored."""
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """The outcome of one request."""

    status: int
    first_s: float = 0.0
    """Time to the first token."""
    n_tokens: int = 0
    """Characters of the prompt, which are the fake engine's tokens, and tokens of the answer."""
    request_id: str = ""


async def ask(client: Client) -> TimedAnswer:
    """Stream one completion of a prompt that was not sent before."""
    prompt = f"{time.time_ns()} {next(_numbers)} " + "word " * _WORDS
    body = {"prompt": prompt, "n_predict": N_ANSWER, "ignore_eos": True, "stream": True}
    began = time.perf_counter()
    connection, status = await client.open("POST", "/completion", orjson.dumps(body))
    if status != 200:
        await connection.rest()
        client.done(connection)
        return TimedAnswer(status)
    first_s = 0.0
    while data := await connection.more():
        if not first_s and b"data:" in data:
            first_s = time.perf_counter() - began
    request_id = connection.headers.get("x-request-id", "")
    client.done(connection)
    return TimedAnswer(status, first_s, len(prompt) + N_ANSWER, request_id)


async def flood(url: str, key: str, n: int) -> None:
    """Keep `n` requests open until SIGTERM."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    counts = {"tokens": 0, "refused": 0}
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    client = Client(url, key)

    async def keep_asking() -> None:
        while True:
            answer = await ask(client)
            counts["tokens"] += answer.n_tokens
            if answer.status != 200:
                counts["refused"] += 1
                await asyncio.sleep(_REFUSED_S)

    print("begins", flush=True)
    asking = [asyncio.create_task(keep_asking()) for _ in range(n)]
    await ended.wait()
    print(orjson.dumps(counts).decode(), flush=True)
    await stopped(asking)


async def stopped(asking: Sequence[asyncio.Task[None]]) -> None:
    """Cancel clients and wait for their ends; raises what one of them failed with."""
    for task in asking:
        task.cancel()
    for end in await asyncio.gather(*asking, return_exceptions=True):
        if isinstance(end, Exception):
            raise end


if __name__ == "__main__":
    asyncio.run(flood(sys.argv[1], sys.argv[2], int(sys.argv[3])))
