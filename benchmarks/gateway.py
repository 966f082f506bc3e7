"""What the gateway alone costs: real gateway process, fake workers, raw HTTP clients.

`python -m benchmarks.gateway` prints tokens a second, CPU a token (from the kernel's count of the
gateway process, so other processes do not count) and the time to the first token. CPU is printed
twice: of the whole run, and of the middle of the run, where no request begins or ends. The fake
worker answers at once, so the time to the first token is that of the gateway and two sockets.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.processes import core_use, free_port, leave_one_core
from gateway.bench.summary import distribution
from protocol.config.config import GatewayConfig, PoolConfig, dump

ROOT = Path(__file__).resolve().parent.parent
POLL_S = 0.05
START_POLLS = 400
EDGE_S = 1.0
"""Begin and end of a run, where its requests are read and ended."""


@dataclass(frozen=True, slots=True)
class Load:
    """One scenario."""

    name: str
    streams: int
    """Streams at once."""
    tokens: int
    """Tokens of each stream."""
    rate: float
    """Tokens a second of each stream; 0 is as fast as the fake worker goes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client saw of one stream."""

    first_s: float
    n_events: int


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway that has all its workers."""

    port: int
    pid: int

    def cpu_s(self) -> float:
        """CPU seconds that its threads have used."""
        return core_use(self.pid).ran_s


@dataclass(frozen=True, slots=True)
class Fake:
    """Fake workers, which run in one process."""

    name: str
    slots: int
    """Of each worker."""
    rate: float
    model: str = "fake"
    count: int = 1


@contextmanager
def spawned(
    log: Path, *arguments: str, cores: Collection[int] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python -m …` from the root of the repository until the block ends, on these cores."""
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT, stderr=output)
        if cores:
            os.sched_setaffinity(process.pid, cores)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@contextmanager
def running_gateway(*fakes: Fake, cores: Collection[int] = ()) -> Iterator[RunningGateway]:
    """Run a gateway, on these cores, with fake workers."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        endpoint = f"ipc://{directory}/workers.sock"
        port = free_port()
        for fake in fakes:
            about = ("--connect", endpoint, "--name", fake.name, "--model", fake.model)
            speed = ("--slots", str(fake.slots), "--rate", str(fake.rate))
            count = ("--count", str(fake.count)) if fake.count > 1 else ()
            log = directory / f"{fake.name}.log"
            stack.enter_context(spawned(log, "tests.fakes.worker", *about, *speed, *count))
        config = GatewayConfig(port=port, bind=(endpoint,), metrics=True, queue_size=100_000)
        path, log = directory / "pool.json", directory / "gateway.log"
        path.write_text(dump(PoolConfig(gateway=config, runtime_dir=name)))
        command = ("gateway", "--config", str(path))
        process = stack.enter_context(spawned(log, *command, cores=cores))
        try:
            asyncio.run(answers(port, sum(fake.slots * fake.count for fake in fakes)))
        except TimeoutError:
            raise click.ClickException(f"no gateway:\n{log.read_text()}") from None
        yield RunningGateway(port, process.pid)


async def answers(port: int, n_slots: int) -> None:
    """Wait until the gateway has all slots; raises `TimeoutError`."""
    for _ in range(START_POLLS):
        if f'"slots_idle":{n_slots},'.encode() in await health(port):
            return
        await asyncio.sleep(POLL_S)
    raise TimeoutError


async def health(port: int) -> bytes:
    """Return the answer to GET /health; empty while no process listens."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return b""
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer


async def stream(port: int, tokens: int, model: str = "fake") -> Answer:
    """Stream one chat completion and count its events; bytes are not parsed any further."""
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": "some words to say again and again"}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    started = time.perf_counter()
    writer.write(head.encode() + body)
    first_s, n_events, tail = 0.0, 0, b""
    while chunk := await reader.read(65536):
        if not first_s and b'"content":"' in tail + chunk:
            first_s = time.perf_counter() - started
        n_events += chunk.count(b"data: ")
        tail = (tail + chunk)[-200:]
    writer.close()
    if b"[DONE]" not in tail:
        raise RuntimeError(f"the stream broke off: {tail!r}")
    return Answer(first_s, n_events)


async def crowd(port: int, load: Load) -> list[Answer]:
    """Run all streams of a scenario at once."""
    return await asyncio.gather(*(stream(port, load.tokens) for _ in range(load.streams)))


async def crowd_and_middle(one: RunningGateway, load: Load) -> tuple[list[Answer], float]:
    """Run all streams of a scenario; return its answers, and the gateway's CPU in its middle."""
    running = asyncio.create_task(crowd(one.port, load))
    length_s = load.tokens / load.rate if load.rate else 0.0
    cpu = 0.0
    if length_s > 3 * EDGE_S:
        await asyncio.sleep(EDGE_S)
        cpu_s, started = one.cpu_s(), time.perf_counter()
        await asyncio.sleep(length_s - 2 * EDGE_S)
        cpu = (one.cpu_s() - cpu_s) / (time.perf_counter() - started)
    return await running, cpu


async def in_turn(port: int, n: int, model: str = "fake") -> list[Answer]:
    """Run n short streams one after the other."""
    return [await stream(port, 2, model) for _ in range(n)]


async def beside(port: int, n: int, load: Load) -> list[Answer]:
    """Run n short streams on a free worker while a crowd streams from another."""
    busy = asyncio.create_task(crowd(port, load))
    await asyncio.sleep(0.5)
    seen = await in_turn(port, n, "quick")
    busy.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await busy
    return seen


def measure(load: Load, n_workers: int, cores: Collection[int]) -> str:
    """Run one scenario and return its row."""
    slots = -(-load.streams // n_workers)
    fakes = [Fake(f"w{i}", slots, load.rate) for i in range(n_workers)]
    with running_gateway(*fakes, cores=cores) as one:
        asyncio.run(crowd(one.port, dataclasses.replace(load, tokens=8)))
        cpu_s, started = one.cpu_s(), time.perf_counter()
        seen, middle = asyncio.run(crowd_and_middle(one, load))
        wall_s, cpu_s = time.perf_counter() - started, one.cpu_s() - cpu_s
    n_tokens = load.streams * load.tokens
    per_event = n_tokens / sum(answer.n_events for answer in seen)
    middle_s = middle * wall_s / n_tokens
    return (
        f"| {load.name} | {load.streams} | {n_tokens / wall_s:,.0f} | {per_event:.2f} "
        f"| {cpu_s / n_tokens * 1e6:.1f} | {f'{middle_s * 1e6:.1f}' if middle_s else '-'} "
        f"| {n_tokens / cpu_s:,.0f} | {cpu_s / wall_s:.0%} |"
    )


def first_token(name: str, seen: list[Answer]) -> str:
    """Return the row of a series of times to the first token."""
    times = distribution([answer.first_s * 1000 for answer in seen])
    assert times is not None
    return f"| {name} | {times.n} | {times.p50:.2f} | {times.p99:.2f} |"


@click.command()
@click.option("--streams", default=64, help="Streams at once.")
@click.option("--tokens", default=512, help="Tokens of each stream.")
@click.option("--requests", default=300, help="Requests for the time to the first token.")
@click.option("--workers", default=2, help="Fake workers.")
@click.option(
    "--own-core", is_flag=True, help="Leave the gateway one core, everything else the others."
)
def main(streams: int, tokens: int, requests: int, workers: int, own_core: bool) -> None:
    """Measure the gateway alone."""
    cores = leave_one_core() if own_core else ()
    columns = ("load", "streams", "tokens/s", "tokens/event", "CPU us/token", "in the middle")
    print(f"| {' | '.join(columns)} | tokens/s/core | CPU |\n{'|---' * 8}|")
    for load in (
        Load("50 tokens/s each", streams, tokens // 2, 50.0),
        Load("150 tokens/s each", streams, tokens, 150.0),
        Load("400 tokens/s each", streams, tokens * 4, 400.0),
        Load("flat out", streams, tokens * 8, 0.0),
    ):
        print(measure(load, workers, cores), flush=True)
    print("\n| time to first token, ms | n | p50 | p99 |")
    print("|---|---|---|---|")
    with running_gateway(Fake("w0", 4, 0.0), cores=cores) as one:
        asyncio.run(in_turn(one.port, 20))
        print(first_token("idle", asyncio.run(in_turn(one.port, requests))), flush=True)
    fakes = (Fake("w0", streams, 50.0), Fake("w1", 4, 0.0, "quick"))
    with running_gateway(*fakes, cores=cores) as one:
        busy = Load("", streams, 100_000, 50.0)
        seen = asyncio.run(beside(one.port, requests, busy))
        print(first_token(f"beside {streams} streams of 50 tokens/s", seen))


if __name__ == "__main__":
    main()
