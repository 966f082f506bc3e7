"""The command line of `llamapool bench`."""

import asyncio
import dataclasses
import os
from pathlib import Path
from typing import Any

import click
import orjson
import uvloop

from gateway.bench import progress
from gateway.bench.client.asking import first_model
from gateway.bench.client.connection import Client, address_of
from gateway.bench.client.dialects import BenchTarget
from gateway.bench.drive import BenchLoad, BenchRun, Driver
from gateway.bench.options import load_of, shape_of, slo_of, target_of, with_options
from gateway.bench.plan import LoadShape
from gateway.bench.report import document, text


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("url")
@with_options
def bench(url: str, **values: Any) -> None:
    """Load an OpenAI-compatible server and measure it.

    URL is its address, with or without /v1. Ctrl-C ends a run early and reports what there is.
    """
    try:
        address_of(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    target, shape, load = target_of(url, values), shape_of(values), load_of(values)
    slo, file = slo_of(values), values["file"]
    if file is not None:
        _check_writable(file)
    run = run_in_loop(target, shape, load)
    click.echo(text(run, slo))
    if file is not None:
        settings = {name: _plain(value) for name, value in values.items() if name != "api_key"}
        found = document(run, slo, {"url": url} | settings, with_requests=values["details"])
        _write(file, orjson.dumps(found, option=orjson.OPT_INDENT_2))
    if not any(transcript.ok for transcript in run.transcripts):
        raise SystemExit(1)


def _check_writable(file: Path) -> None:
    """Open the file before the run; what is in it stays until the figures are there."""
    try:
        file.open("ab").close()
    except OSError as error:
        raise click.UsageError(f"--json {file}: {error.strerror}") from error


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as error:
        raise click.ClickException(f"--json {file}: {error.strerror}") from error


def run_in_loop(target: BenchTarget, shape: LoadShape, load: BenchLoad) -> BenchRun:
    """Run a load from synchronous code."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measured(target, shape, load))


async def measured(target: BenchTarget, shape: LoadShape, load: BenchLoad) -> BenchRun:
    """Run a load, with a line of progress on a terminal."""
    if not target.model:
        client = Client(target.url, target.api_key)
        target = dataclasses.replace(target, model=await first_model(client))
        client.close()
    driver = Driver(target, shape, load)
    async with progress.shown(driver):
        return await driver.run()


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    # A file's name may have any bytes.
    text = os.fsencode(str(value)).decode(errors="replace")
    return list(value) if isinstance(value, tuple) else text
