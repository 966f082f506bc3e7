"""What streams notice while others ask: the longest gap between two of their tokens.

python -m benchmarks.beside --llama-server PATH [--model FILE] [--mmproj FILE] [--words 6000]
    [--streams 4] [--flag=-ngl --flag=999]

Four streams run on each server in turn. Meanwhile one request, and then three at once, begin with
a prompt that a slot holds; with a projector they ask about images that are new. A table says how
long the streams' longest gap was, how many tokens they had, and when each request had its first.
"""

import asyncio
import base64
import os
import random
import signal
import struct
import time
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import orjson

from benchmarks.compare.servers import Flags, Side, running
from gateway.bench.client.connection import Client
from gateway.bench.client.dialects import PATHS, BenchEndpoint, read
from gateway.bench.client.sse import SseParser
from gateway.bench.words import drawn, text
from worker.settings.resolve import find_model

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_LEAD_S = 1.0
"""Seconds that the streams have before others ask."""


class Asked:
    """One streamed request."""

    def __init__(self, url: str, endpoint: BenchEndpoint, **fields: Any) -> None:
        self.started_s = 0.0
        self.times_s: list[float] = []
        """When each piece of text came."""
        self._url = url
        self._endpoint = endpoint
        self._body = {"stream": True, "ignore_eos": True, "seed": 1, **fields}

    @property
    def ttft_ms(self) -> float:
        """Time to the first token; not a number if none came."""
        return 1e3 * (self.times_s[0] - self.started_s) if self.times_s else float("nan")

    async def run(self) -> None:
        """Send it and read the answer to its end; raises `ClickException` if it is refused."""
        self.started_s = time.perf_counter()
        client, parser = Client(self._url), SseParser()
        path = PATHS[self._endpoint]
        connection, status = await client.open("POST", path, orjson.dumps(self._body))
        if status != 200:
            said = (await connection.rest()).decode(errors="replace")
            raise click.ClickException(f"{path}: status {status}: {said[:300]}")
        while data := await connection.more():
            now_s = time.perf_counter()
            events = [each for each in parser.feed(data) if each != b"[DONE]"]
            texts = [read(self._endpoint, orjson.loads(each)).text for each in events]
            self.times_s += [now_s for text in texts if text]
        connection.close()


def completion(url: str, prompt: str, n: int) -> Asked:
    """Ask for `n` tokens behind a prompt."""
    return Asked(url, BenchEndpoint.NATIVE, prompt=prompt, n_predict=n)


def question(url: str, seed: int) -> Asked:
    """Ask about an image of random tiles."""
    data = base64.b64encode(_png(672, seed)).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    content = [image, {"type": "text", "text": "What is it?"}]
    messages = [{"role": "user", "content": content}]
    return Asked(url, BenchEndpoint.CHAT, messages=messages, max_tokens=16)


def _png(side: int, seed: int) -> bytes:
    chance = random.Random(seed)
    colours = [bytes(chance.randrange(256) for _ in range(3)) for _ in range(64)]
    rows = b"".join(
        b"\0" + b"".join(colours[(x // 16 * 7 + y // 16 * 3) % 64] for x in range(side))
        for y in range(side)
    )
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def words(n: int, seed: int) -> str:
    """Draw a text."""
    return text(drawn("beside", seed), n)


async def measured(url: str, n_streams: int, asked: Sequence[Asked]) -> str:
    """Let requests begin beside streams; return a row's figures."""
    streams = [completion(url, f"Story {i} of the sea", 800) for i in range(n_streams)]
    async with asyncio.TaskGroup() as group:
        for stream in streams:
            group.create_task(stream.run())
        await asyncio.sleep(_LEAD_S)
        start = time.perf_counter()
        await asyncio.gather(*(one.run() for one in asked))
        end = time.perf_counter()
    near = [
        (before, after)
        for stream in streams
        for before, after in pairwise(stream.times_s)
        if after > start and before < end
    ]
    gap_ms = max((1e3 * (after - before) for before, after in near), default=float("nan"))
    ttfts = ", ".join(f"{one.ttft_ms:.0f}" for one in asked)
    return f"{gap_ms:.0f} | {len(near)} | {ttfts}"


async def rows(side: Side, binary: Path, flags: Flags, n_streams: int, n_words: int) -> list[str]:
    """Measure one server."""
    held, found = words(n_words, 1), []
    async with running(side, binary, flags) as server:
        url = server.url
        await completion(url, held, 4).run()
        for n in (1, 3):
            asked = [completion(url, f"{held} {words(30, 10 * n + i)}", 32) for i in range(n)]
            found.append(f"| {n} held | {side} | {await measured(url, n_streams, asked)} |")
        for n in (1, 3) if "--mmproj" in flags.extra else ():
            images = [question(url, 10 * n + i) for i in range(n)]
            found.append(f"| {n} images | {side} | {await measured(url, n_streams, images)} |")
    return found


@click.command()
@click.option("--llama-server", "binary", type=_FILE, help="Beside it; none: ours alone.")
@click.option("--model", default="", help="GGUF file; none is the embedded model.")
@click.option("--mmproj", type=_FILE, help="Projector; none: no images.")
@click.option("--words", "n_words", default=6000, show_default=True, help="Of the prompt.")
@click.option("--streams", "n_streams", default=4, show_default=True)
@click.option("--flag", "extra", multiple=True, help="One more flag for both; may be repeated.")
def main(binary: Path | None, mmproj: Path | None, **values: Any) -> None:
    """Print the table."""
    # Terminated, it must end the server that it started, as when it is interrupted.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    more = ("--mmproj", str(mmproj)) if mmproj else ()
    flags = Flags(
        model=Path(find_model(values["model"])),
        slots=8,
        ctx=8 * (2 * values["n_words"] + 4096),
        threads=len(os.sched_getaffinity(0)),
        extra=(*more, *values["extra"]),
    )
    click.echo("| asked | server | longest gap ms | tokens of streams meanwhile | TTFT ms |")
    click.echo("|---|---|---|---|---|")
    for side in (Side.OURS, Side.THEIRS) if binary else (Side.OURS,):
        path = (binary or Path()).absolute()
        found = rows(side, path, flags, values["n_streams"], values["n_words"])
        click.echo("\n".join(asyncio.run(found)))


if __name__ == "__main__":
    main()
