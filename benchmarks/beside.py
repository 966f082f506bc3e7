"""What streams notice while others ask: the longest gap between two of their tokens.

python -m benchmarks.beside --llama-server PATH [--model FILE] [--mmproj FILE] [--words 6000]
    [--streams 4] [--flag=-ngl --flag=999]

Four streams run on each server in turn. Meanwhile one request, and then three at once, begin with
a prompt that a slot holds; with a projector they ask about images that are new. A table says how
long the streams' longest gap was, how many tokens they had, and when each request had its first.
"""

import asyncio
import base64
import http.client
import json
import os
import random
import struct
import threading
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from benchmarks.compare.servers import Flags, Side, running
from worker.settings.resolve import find_model

_WORDS = "sea captain wind storm island harbor morning light water sail rope deck night star map"
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_LEAD_S = 1.0
"""Seconds that the streams have before others ask."""


@dataclass(slots=True)
class Asked:
    """One streamed request, on a thread of its own."""

    url: str
    path: str
    body: dict[str, Any]
    started_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    """When each piece of text came."""
    _thread: threading.Thread | None = None

    def start(self) -> "Asked":
        """Send it."""
        self.started_s = time.perf_counter()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def wait(self) -> None:
        """Wait for its end."""
        assert self._thread is not None
        self._thread.join()

    @property
    def ttft_ms(self) -> float:
        """Time to the first token; not a number if none came."""
        return 1e3 * (self.times_s[0] - self.started_s) if self.times_s else float("nan")

    def _run(self) -> None:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=600)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", self.path, json.dumps(self.body), headers)
        for line in connection.getresponse():
            if line.startswith(b"data: {") and _text_of(json.loads(line[6:])) is not None:
                self.times_s.append(time.perf_counter())
        connection.close()


def _text_of(event: dict[str, Any]) -> str | None:
    if "choices" not in event:
        text: str | None = event.get("content")
        return text
    return next((choice["delta"].get("content") for choice in event["choices"]), None)


def completion(url: str, prompt: str, n: int) -> Asked:
    """Ask for `n` tokens behind a prompt."""
    body = {"prompt": prompt, "n_predict": n, "ignore_eos": True, "stream": True, "seed": 1}
    return Asked(url, "/completion", body)


def question(url: str, seed: int) -> Asked:
    """Ask about an image of random tiles."""
    data = base64.b64encode(_png(672, seed)).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    content = [image, {"type": "text", "text": "What is it?"}]
    messages = [{"role": "user", "content": content}]
    body = {"messages": messages, "max_tokens": 16, "ignore_eos": True, "stream": True}
    return Asked(url, "/v1/chat/completions", body)


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
    chance = random.Random(seed)
    return " ".join(chance.choice(_WORDS.split()) for _ in range(n))


def measured(url: str, n_streams: int, asked: Sequence[Asked]) -> str:
    """Let requests begin beside streams; return a row's figures."""
    streams = [completion(url, f"Story {i} of the sea", 800).start() for i in range(n_streams)]
    time.sleep(_LEAD_S)
    start = time.perf_counter()
    for one in asked:
        one.start()
    for one in asked:
        one.wait()
    end = time.perf_counter()
    for stream in streams:
        stream.wait()
    near = [
        (before, after)
        for stream in streams
        for before, after in pairwise(stream.times_s)
        if after > start and before < end
    ]
    gap_ms = max((1e3 * (after - before) for before, after in near), default=float("nan"))
    ttfts = ", ".join(f"{one.ttft_ms:.0f}" for one in asked)
    return f"{gap_ms:.0f} | {len(near)} | {ttfts}"


def rows(side: Side, url: str, n_streams: int, n_words: int, *, has_images: bool) -> list[str]:
    """Measure one server."""
    held = words(n_words, 1)
    first = completion(url, held, 4).start()
    first.wait()
    found = []
    for n in (1, 3):
        asked = [completion(url, f"{held} {words(30, 10 * n + i)}", 32) for i in range(n)]
        found.append(f"| {n} held | {side} | {measured(url, n_streams, asked)} |")
    for n in (1, 3) if has_images else ():
        images = [question(url, 10 * n + i) for i in range(n)]
        found.append(f"| {n} images | {side} | {measured(url, n_streams, images)} |")
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
        found = _measure(side, path, flags, values["n_streams"], values["n_words"])
        click.echo("\n".join(asyncio.run(found)))


async def _measure(
    side: Side, binary: Path, flags: Flags, n_streams: int, n_words: int
) -> list[str]:
    has_images = "--mmproj" in flags.extra
    async with running(side, binary, flags) as server:
        return await asyncio.to_thread(
            rows, side, server.url, n_streams, n_words, has_images=has_images
        )


if __name__ == "__main__":
    main()
