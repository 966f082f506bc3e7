"""Our pool against llama-server: the same load on both in turns, results as ratios.

    python -m benchmarks.compare --llama-server PATH [--model FILE] [--streams 8] [--rounds 3]

Both get one worker of the same slots, threads and context. Rounds alternate, so that a machine
that grows slower in the meantime is slow for both. Each round: `streams` chats at once, and one
long prompt that arrives in the middle of them.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from worker.resolve import find_model

QUESTIONS = ("a river", "the moon", "bread", "a violin", "winter", "a letter", "the sea", "a bee")
LONG_PROMPT = (
    "The committee met again on Tuesday and talked about the roof of the old library. " * 60
)
PORT = 18090


@dataclass
class Load:
    """What was measured on one server, all rounds together."""

    n_tokens: int = 0
    elapsed_s: float = 0.0
    ttft_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    long_ttft_s: list[float] = field(default_factory=list)


async def stream(client: httpx.AsyncClient, url: str, prompt: str, n_predict: int) -> list[float]:
    """Run one completion; return the time of each token, the start first."""
    body = {
        "prompt": prompt,
        "n_predict": n_predict,
        "stream": True,
        "temperature": 0.8,
        "seed": 1,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    times = [time.perf_counter()]
    async with client.stream("POST", f"{url}/completion", json=body, timeout=600) as response:
        response.raise_for_status()
        times += [
            time.perf_counter()
            async for line in response.aiter_lines()
            if line.startswith("data: ") and not json.loads(line[6:])["stop"]
        ]
    return times


async def round_of(url: str, n_streams: int, n_predict: int, load: Load) -> None:
    """Load one server once."""
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=64)) as client:
        start = time.perf_counter()
        prompts = [f"Tell me a story about {QUESTIONS[i % 8]} ({i})." for i in range(n_streams - 1)]
        tasks = [asyncio.create_task(stream(client, url, one, n_predict)) for one in prompts]
        await asyncio.sleep(1.0)
        long = await stream(client, url, LONG_PROMPT, 8)
        for times in await asyncio.gather(*tasks):
            load.ttft_s.append(times[1] - times[0])
            load.gaps_s += [b - a for a, b in itertools.pairwise(times[1:])]
            load.n_tokens += len(times) - 1
        load.long_ttft_s.append(long[1] - long[0])
        load.elapsed_s += time.perf_counter() - start


@contextlib.contextmanager
def running(command: list[str], url: str, env: dict[str, str]) -> Iterator[None]:
    """Start a server, wait until it can serve, end it afterwards."""
    process = subprocess.Popen(
        command, env=os.environ | env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            if time.monotonic() > deadline:
                raise SystemExit(f"{command[0]} does not become ready")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of all lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(ours: Load, theirs: Load) -> str:
    """Format both results and their ratio."""
    rows: list[tuple[str, float, float]] = [
        (
            "tokens/s, all streams",
            ours.n_tokens / ours.elapsed_s,
            theirs.n_tokens / theirs.elapsed_s,
        ),
        (
            "TTFT p50 ms",
            statistics.median(ours.ttft_s) * 1e3,
            statistics.median(theirs.ttft_s) * 1e3,
        ),
        ("ITL p50 ms", percentile(ours.gaps_s, 0.5) * 1e3, percentile(theirs.gaps_s, 0.5) * 1e3),
        ("ITL p99 ms", percentile(ours.gaps_s, 0.99) * 1e3, percentile(theirs.gaps_s, 0.99) * 1e3),
        ("ITL max ms", max(ours.gaps_s) * 1e3, max(theirs.gaps_s) * 1e3),
        (
            "TTFT of the long prompt ms",
            statistics.median(ours.long_ttft_s) * 1e3,
            statistics.median(theirs.long_ttft_s) * 1e3,
        ),
    ]
    lines = ["| | llamapool | llama-server | ratio |", "|---|---|---|---|"]
    lines += [f"| {name} | {a:.1f} | {b:.1f} | {a / b:.2f} |" for name, a, b in rows]
    return "\n".join(lines)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-server", required=True, type=Path)
    parser.add_argument("--model", default=find_model(""))
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--predict", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flash-attn", default="off", choices=("on", "off"))
    args = parser.parse_args()
    threads = str(len(os.sched_getaffinity(0)))
    common = [
        "-m",
        str(args.model),
        "-np",
        str(args.streams),
        "-c",
        str(1024 * args.streams),
        "-t",
        threads,
        "-fa",
        args.flash_attn,
    ]
    ours, theirs = Load(), Load()
    pool = [sys.executable, "-m", "worker.cli", "serve", *common, "--port", str(PORT)]
    peer = [str(args.llama_server), *common, "--port", str(PORT + 1)]
    library = {"LD_LIBRARY_PATH": str(args.llama_server.parent)}
    # Only one runs at a time: idle llama.cpp threads spin for a while after each step.
    for _ in range(args.rounds):
        for command, port, env, load in ((pool, PORT, {}, ours), (peer, PORT + 1, library, theirs)):
            url = f"http://127.0.0.1:{port}"
            with running(command, url, env):
                asyncio.run(round_of(url, args.streams, args.predict, load))
    print(table(ours, theirs))


if __name__ == "__main__":
    main()
