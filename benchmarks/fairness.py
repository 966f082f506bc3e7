"""One flooding key beside nine normal ones: `python -m benchmarks.fairness`, on a simulated clock.

With `--http` it is real time: a gateway, keys from a file, clients over HTTP, workers that echo.

The normal keys keep as many requests open as `--streams` says: with four they want more than the
pool has, with one they leave slots free, which the flood then takes.
"""

import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path

import click
import httpx

from tests.fakes.echo import FakeOptions
from tests.gateway.flood import FLOOD, N_NORMAL, Crowd
from tests.gateway.inprocess import running

_STEP_S = 0.02
_BODY = {"prompt": "a b c d e " * 6, "n_predict": 30, "stream": True}
_FLOODING = 60
"""Requests that the flooding key has open at a time."""
_LATER_S = 2.0
"""The flood begins when the others are at work."""


async def over_http(streams: int, seconds: float) -> None:
    """Print what nine keys see with and without a tenth that floods."""
    for floods in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            times, refused = await _crowd(Path(folder), streams, seconds, floods=floods)
        normal = sorted(one for name, all_ in times.items() if name != FLOOD for one in all_)
        p50, p99 = (normal[int(share * (len(normal) - 1))] * 1000 for share in (0.5, 0.99))
        told = ", ".join(f"{n} of {name}" for name, n in refused.items()) or "none"
        print(
            f"{'with flood' if floods else 'alone':10}  TTFT of the nine, ms: p50 {p50:.0f}, "
            f"p99 {p99:.0f} ({len(normal)} answers; {len(times.get(FLOOD, ()))} of the flood); "
            f"429: {told}"
        )


async def _crowd(
    folder: Path, streams: int, seconds: float, *, floods: bool
) -> tuple[dict[str, list[float]], Counter[str]]:
    names = [f"normal-{i}" for i in range(N_NORMAL)]
    tables = [f'[[key]]\nname = "{name}"\nkey = "{name}"\n' for name in (*names, FLOOD)]
    (folder / "keys.toml").write_text("".join(tables))
    times: dict[str, list[float]] = {}
    refused: Counter[str] = Counter()
    async with running(folder, api_key_file=(str(folder / "keys.toml"),)) as gateway:
        for i in range(2):
            await gateway.add_worker(FakeOptions(name=f"w{i}", n_slots=8, step_s=_STEP_S))
        end = time.monotonic() + seconds
        crowd = [(name, streams) for name in names] + [(FLOOD, _FLOODING)] * floods
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=gateway.url, limits=limits, timeout=60) as client:
            asking = [
                _ask(client, name, end, times, refused) for name, n in crowd for _ in range(n)
            ]
            await asyncio.gather(*asking)
    return times, refused


async def _ask(
    client: httpx.AsyncClient,
    name: str,
    end: float,
    times: dict[str, list[float]],
    refused: Counter[str],
) -> None:
    headers = {"Authorization": f"Bearer {name}"}
    await asyncio.sleep(_LATER_S if name == FLOOD else 0.0)
    while (began := time.monotonic()) < end:
        async with client.stream("POST", "/completion", json=_BODY, headers=headers) as answer:
            if answer.status_code == 429:
                refused[name] += 1
                await asyncio.sleep(0.05)
                continue
            first_at = 0.0
            async for line in answer.aiter_lines():
                if line.startswith("data:") and not first_at:
                    first_at = time.monotonic()
            times.setdefault(name, []).append(first_at - began)


@click.command()
@click.option("--streams", default=4, help="Open requests of each normal key.")
@click.option("--seconds", default=120.0, help="Simulated time; with --http, real time.")
@click.option("--http", "is_real", is_flag=True, help="Ask a real gateway over HTTP.")
def main(streams: int, seconds: float, *, is_real: bool) -> None:
    """Print shares, times to first token and refusals, with and without the flood."""
    if is_real:
        asyncio.run(over_http(streams, seconds))
        return
    alone, beside = (
        Crowd(floods=floods, n_streams=streams, duration_s=seconds).run()
        for floods in (False, True)
    )
    n_others = sum(n for name, n in beside.refused.items() if name != FLOOD)
    print(f"Jain by tokens             {beside.jain:.4f}")
    print(f"p99 TTFT of the nine, s    {alone.p99_s():.2f} alone, {beside.p99_s():.2f} with flood")
    print(f"ratio                      {beside.p99_s() / alone.p99_s():.2f}")
    print(f"429 of the nine            {n_others}")
    print(f"429 of the flood           {beside.refused[FLOOD]}")


if __name__ == "__main__":
    main()
