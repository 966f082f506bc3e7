"""The slot curve: what more slots, and more workers on the same device, bring and cost.

python -m benchmarks.slots [--model FILE] [--slots 1,2,4,8,16,32,64] [--workers 1,2,4] \
    [--prompt 128 --prompt 1024] [--flag=-ngl --flag=all] [--llama-server PATH] [--json FILE]

Each point is a fresh pool with so many slots in all, every one of which always has a chat.
"""

import asyncio
import dataclasses
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import orjson

from benchmarks.compare.machine import machine, versions
from benchmarks.compare.measure import target_of
from benchmarks.compare.servers import Flags, Side, running
from benchmarks.compare.workloads import fixed, ms
from gateway.bench.client.dialects import BenchEndpoint
from gateway.bench.client.transcript import Role
from gateway.bench.drive import BenchLoad, Driver
from gateway.bench.plan import LoadShape
from gateway.bench.summary import Summary, summarize
from worker.settings.resolve import find_model

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_CELLS = 256
"""llama.cpp rounds a context up to a multiple of it."""
_TEMPLATE = 64
"""Tokens that a chat template adds, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One point of the curve."""

    side: Side
    workers: int
    slots: int
    """Of all workers together."""
    n_prompt: int
    n_output: int

    @property
    def ctx(self) -> int:
        """Cells for every slot's prompt and answer."""
        need = self.n_prompt + _TEMPLATE + self.n_output
        return -(-need // _CELLS) * _CELLS * self.slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What was measured there."""

    setting: Setting
    tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    itl_p99_ms: float
    n_failed: int


def settings(
    slots: Sequence[int],
    workers: Sequence[int],
    prompts: Sequence[int],
    n_output: int,
    with_theirs: bool,
) -> list[Setting]:
    """List all points; slots that cannot be shared out evenly are none."""
    sides = [(Side.OURS, n) for n in workers] + ([(Side.THEIRS, 1)] if with_theirs else [])
    return [
        Setting(side=side, workers=n, slots=count, n_prompt=n_prompt, n_output=n_output)
        for n_prompt in prompts
        for count in slots
        for side, n in sides
        if count % n == 0
    ]


async def measured(setting: Setting, flags: Flags, binary: Path, rounds: int, seed: int) -> Point:
    """Start the pool, keep all of its slots busy for some rounds of chats, end it."""
    own = dataclasses.replace(
        flags,
        slots=setting.slots,
        ctx=setting.ctx,
        threads=max(1, flags.threads // setting.workers),
        workers=setting.workers,
    )
    shape = LoadShape(prompt=fixed(setting.n_prompt), output=fixed(setting.n_output))
    load = BenchLoad(
        concurrency=setting.slots,
        requests=setting.slots * rounds,
        warmup=setting.workers,
        seed=seed,
    )
    async with running(setting.side, binary, own) as server:
        target = await target_of(server, BenchEndpoint.CHAT, stream=True)
        run = await Driver(target, shape, load).run()
    return _point(
        setting,
        summarize(transcript for transcript in run.transcripts if transcript.role is Role.LOAD),
    )


def _point(setting: Setting, found: Summary) -> Point:
    return Point(
        setting=setting,
        tokens_per_s=found.output_tokens_per_s,
        ttft_p50_ms=ms(found.ttft_ms, "p50"),
        ttft_p99_ms=ms(found.ttft_ms, "p99"),
        tpot_p50_ms=ms(found.tpot_ms, "p50"),
        itl_p99_ms=ms(found.itl_ms, "p99"),
        n_failed=found.n_failed,
    )


def table(points: Iterable[Point]) -> str:
    """Write the points as a Markdown table."""
    lines = [
        "| prompt | slots | server | tok/s | of a slot | TTFT p50, p99 ms | TPOT p50 ms "
        "| ITL p99 ms | failed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for point in points:
        at = point.setting
        who = f"{at.workers} workers" if at.workers > 1 else "1 worker"
        lines.append(
            f"| {at.n_prompt} | {at.slots} | {who if at.side is Side.OURS else at.side} "
            f"| {point.tokens_per_s:,.1f} | {point.tokens_per_s / at.slots:,.1f} "
            f"| {point.ttft_p50_ms:,.0f}, {point.ttft_p99_ms:,.0f} | {point.tpot_p50_ms:,.1f} "
            f"| {point.itl_p99_ms:,.0f} | {point.n_failed} |"
        )
    return "\n".join(lines)


def _counts(_context: click.Context, _param: click.Parameter, text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise click.BadParameter(f"{text!r} is no list of numbers such as 1,2,4")
    return found


@click.command()
@click.option("--model", default="", help="GGUF file; none is the embedded model.")
@click.option("--slots", default="1,2,4,8,16,32,64", show_default=True, callback=_counts)
@click.option("--workers", default="1,2,4", show_default=True, callback=_counts)
@click.option("--prompt", "prompts", type=int, multiple=True, default=[128], show_default=True)
@click.option("--output", "n_output", default=128, show_default=True, help="Tokens an answer.")
@click.option("--rounds", default=2, show_default=True, help="Chats of each slot.")
@click.option("--threads", default=0, help="Of all workers; 0 is the cores at hand.")
@click.option("--seed", default=1, show_default=True, help="Of the texts.")
@click.option("--flag", "extra", multiple=True, help="One more flag; may be repeated.")
@click.option("--llama-server", "binary", type=_FILE, help="Measure this one beside ours.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Where the points go.")
def main(file: Path | None, **values: Any) -> None:
    """Measure the slot curve."""
    flags = Flags(
        model=Path(find_model(values["model"])),
        slots=1,
        ctx=0,
        threads=values["threads"] or len(os.sched_getaffinity(0)),
        extra=values["extra"],
    )
    binary = (values["binary"] or Path()).absolute()
    axes = (values["slots"], values["workers"], values["prompts"], values["n_output"])
    about = {"machine": machine(), "versions": versions(binary), "model": flags.model.name}
    points: list[Point] = []
    for setting in settings(*axes, with_theirs=values["binary"] is not None):
        point = asyncio.run(measured(setting, flags, binary, values["rounds"], values["seed"]))
        points.append(point)
        click.echo(table([point]).splitlines()[-1], err=True)
        if file:
            document = {**about, "points": [dataclasses.asdict(point) for point in points]}
            file.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    click.echo(table(points))


if __name__ == "__main__":
    main()
