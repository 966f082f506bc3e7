"""One gateway in front of many: idle connections, streams and simulated workers at once.

`python -m benchmarks.crowd` starts a real gateway and fake workers, opens connections that do
nothing, streams to a thousand clients, and reads from the gateway's own metrics and from the kernel
what that takes: memory, delay of the loop, time to decide, CPU time a token, time of a scrape.
"""

import asyncio
import itertools
import math
import resource
import socket
import statistics
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.gateway import Fake, running_gateway, stream
from benchmarks.processes import core_use, leave_one_core
from gateway.feed.history import quantile

FILES = 16_000
STREAM_S = 20.0
"""Length of a stream."""
ALIVE = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
Buckets = Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many of each."""

    idle: int
    streams: int
    workers: int
    slots: int
    rate: float
    """Tokens a second of each stream."""
    cores: Collection[int] = ()
    """Where the gateway runs; empty is anywhere."""


def resident_mb(pid: int) -> float:
    """Return the memory of a process that is in RAM, in millions of bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024 / 1e6


def idlers(port: int, n: int) -> list[socket.socket]:
    """Open connections that each had one request, and keep them."""
    found = []
    for _ in range(n):
        one = socket.create_connection(("127.0.0.1", port))
        one.sendall(ALIVE)
        one.recv(4096)
        found.append(one)
    return found


def alive(connections: list[socket.socket]) -> int:
    """Count the connections that the gateway has not closed."""
    n = 0
    for one in connections:
        one.setblocking(False)
        try:
            n += bool(one.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            n += 1
    return n


def scrape(port: int) -> tuple[str, float]:
    """Return the text of the metrics and the time that it took."""
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as one:
        one.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        parts = []
        while part := one.recv(1 << 20):
            parts.append(part)
    body = b"".join(parts).partition(b"\r\n\r\n")[2]
    return body.decode(), time.perf_counter() - began


def buckets(text: str, name: str) -> Buckets:
    """Return the cumulative counts of a histogram."""
    return {
        float(sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(text)
        if family.name == name
        for sample in family.samples
        if sample.name.endswith("_bucket")
    }


def quantile_ms(before: Buckets, after: Buckets, share: float) -> float:
    """Return a quantile of what came between, in ms; not a number if nothing came."""
    bounds = sorted(after)
    sums = [after[bound] - before.get(bound, 0) for bound in bounds]
    counts = {i: n - below for i, (below, n) in enumerate(itertools.pairwise([0.0, *sums]))}
    found = quantile(counts, bounds, share)
    return math.nan if found is None else 1000 * found


async def streams(port: int, crowd: Crowd) -> int:
    """Run all streams at once, started over a second; return how many tokens came."""
    n_tokens = max(2, int(crowd.rate * STREAM_S))

    async def one(i: int) -> int:
        await asyncio.sleep(i / crowd.streams)
        return (await stream(port, n_tokens)).n_events

    await asyncio.gather(*(one(i) for i in range(crowd.streams)))
    return crowd.streams * n_tokens


def measure(crowd: Crowd) -> None:
    """Run the whole and print what was measured."""
    fakes = Fake("w", crowd.slots, crowd.rate, count=crowd.workers)
    with running_gateway(fakes, cores=crowd.cores) as here:
        empty_mb = resident_mb(here.pid)
        quiet = idlers(here.port, crowd.idle)
        idle_mb = resident_mb(here.pid)
        before, _ = scrape(here.port)
        used, began = core_use(here.pid), time.perf_counter()
        n_tokens = asyncio.run(streams(here.port, crowd))
        wall_s, used = time.perf_counter() - began, core_use(here.pid).since(used)
        after, _ = scrape(here.port)
        full_mb = resident_mb(here.pid)
        scrapes = [scrape(here.port)[1] * 1000 for _ in range(5)]
        n_alive = alive(quiet)
    lag, decision = "llamapool_gateway_loop_lag_seconds", "llamapool_decision_seconds"
    lags = buckets(before, lag), buckets(after, lag)
    decisions = buckets(before, decision), buckets(after, decision)
    rows = {
        "idle connections, streams, workers": f"{n_alive:,}, {crowd.streams:,}, {crowd.workers}",
        "tokens, tokens/s": f"{n_tokens:,}, {n_tokens / wall_s:,.0f}",
        "memory: empty, with the idle ones, after the streams": (
            f"{empty_mb:.0f}, {idle_mb:.0f}, {full_mb:.0f} MB"
        ),
        "delay of the loop, p50, p99": two(*lags, 1.0, "ms"),
        "time to decide, p50, p99": two(*decisions, 1000.0, "us"),
        "CPU of the gateway a token": f"{used.ran_s / n_tokens * 1e6:.1f} us",
        "CPU of the gateway; its wait for a core": (
            f"{used.ran_s / wall_s:.0%}; {used.waited_s / wall_s:.0%}"
        ),
        "a scrape, median of five": f"{statistics.median(scrapes):.0f} ms",
    }
    print("| what | measured |\n|---|---|")
    for what, value in rows.items():
        print(f"| {what} | {value} |")


def two(before: Buckets, after: Buckets, factor: float, unit: str) -> str:
    """Write p50 and p99."""
    p50, p99 = (quantile_ms(before, after, share) * factor for share in (0.5, 0.99))
    return f"{p50:.1f}, {p99:.1f} {unit}"


@click.command()
@click.option("--idle", default=10_000, help="Connections that do nothing.")
@click.option("--streams", default=1000, help="Streams at once.")
@click.option("--workers", default=256, help="Fake workers.")
@click.option("--rate", default=5.0, help="Tokens a second of each stream.")
@click.option(
    "--own-core", is_flag=True, help="Leave the gateway one core, everything else the others."
)
def main(idle: int, streams: int, workers: int, rate: float, own_core: bool) -> None:
    """Measure one gateway in front of many."""
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    slots = -(-streams // workers)
    cores = leave_one_core() if own_core else ()
    measure(Crowd(idle, streams, workers, slots, rate, cores))


if __name__ == "__main__":
    main()
