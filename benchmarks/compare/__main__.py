"""The command line: measure and report, or report what was measured."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import click
import orjson

from benchmarks.compare.machine import machine, versions
from benchmarks.compare.measure import Result, measured
from benchmarks.compare.report import markdown
from benchmarks.compare.servers import Flags, Side
from benchmarks.compare.workloads import WORKLOADS, Workload
from worker.resolve import find_model

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_NAMES = [workload.name for workload in WORKLOADS]


@click.command()
@click.option("--llama-server", "binary", type=_FILE, help="The other server's binary.")
@click.option("--model", default="", help="GGUF file; none is the embedded model.")
@click.option("--workload", "names", multiple=True, type=click.Choice(_NAMES), help="Only these.")
@click.option("--rounds", default=2, show_default=True, help="Times that each is run on each.")
@click.option("--slots", default=8, show_default=True, help="Slots of a server.")
@click.option("--ctx", default=16384, show_default=True, help="Context of all of them.")
@click.option("--threads", default=0, help="Threads; 0 is the cores at hand.")
@click.option("--seed", default=1, show_default=True, help="Of the texts.")
@click.option("--flag", "extra", multiple=True, help="One more flag for both; may be repeated.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Where the results go.")
@click.option("--report", type=_FILE, help="Write the table of these results, measure nothing.")
def main(report: Path | None, **values: Any) -> None:
    """Compare our pool with llama-server, the same loads on both in turn."""
    if report is not None:
        click.echo(markdown(orjson.loads(report.read_bytes())))
        return
    if values["binary"] is None:
        raise click.UsageError("say --llama-server PATH, or --report FILE")
    # A terminated comparison must end the server that it started, as an interrupted one does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    document = compared(values)
    click.echo(markdown(document))


def compared(values: dict[str, Any]) -> dict[str, Any]:
    """Run everything; the file grows with every result, so that a broken run is not lost."""
    flags = Flags(
        model=Path(find_model(values["model"])),
        slots=values["slots"],
        ctx=values["ctx"],
        threads=values["threads"] or len(os.sched_getaffinity(0)),
        extra=values["extra"],
    )
    binary = values["binary"].absolute()
    document: dict[str, Any] = {
        "format": 1,
        "machine": machine(),
        "versions": versions(binary),
        "settings": {
            "model": flags.model.name,
            "slots": flags.slots,
            "ctx": flags.ctx,
            "threads": flags.threads,
            "rounds": values["rounds"],
            "seed": values["seed"],
            "flags": " ".join(("--kv-unified", *flags.extra)),
        },
        "results": [],
    }
    chosen = [one for one in WORKLOADS if one.name in (values["names"] or _NAMES)]
    for number in range(values["rounds"]):
        for workload in chosen:
            for side in Side:
                result = _one(workload, side, binary, flags, (values["seed"], number))
                document["results"].append(result.as_dict())
                if values["file"]:
                    values["file"].write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    return document


def _one(
    workload: Workload, side: Side, binary: Path, flags: Flags, seed: tuple[int, int]
) -> Result:
    first, number = seed
    figures, details = asyncio.run(measured(workload, side, binary, flags, first * 100 + number))
    told = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
    click.echo(f"round {number + 1}  {workload.name:<14}{side:<14}{told}", err=True)
    return Result(workload.name, side, number, figures, details)


if __name__ == "__main__":
    main()
