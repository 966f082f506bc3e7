"""The command line: measure and report, or report what was measured."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import click
import orjson

from benchmarks.compare.machine import machine, versions
from benchmarks.compare.measure import Result
from benchmarks.compare.report import markdown
from benchmarks.compare.schedule import ORDERS, Order, Plan
from benchmarks.compare.servers import Flags
from benchmarks.compare.workloads import WORKLOADS
from worker.settings.resolve import find_model

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_NAMES = [workload.name for workload in WORKLOADS]
_USUAL = [workload.name for workload in WORKLOADS if not workload.must_be_named]


@click.command()
@click.option("--llama-server", "binary", type=_FILE, help="The other server's binary.")
@click.option("--model", default="", help="GGUF file; none is the embedded model.")
@click.option("--workload", "names", multiple=True, type=click.Choice(_NAMES), help="Only these.")
@click.option("--rounds", default=2, show_default=True, help="Times that each is run on each.")
@click.option(
    "--order",
    type=click.Choice([order.value for order in Order]),
    default=Order.IN_TURN.value,
    show_default=True,
    help="A fresh server each run, or both up together and loaded by turns.",
)
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
        raise click.UsageError("use --llama-server PATH or --report FILE")
    # A terminated comparison must end the server that it started, as an interrupted one does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    document = compared(values)
    click.echo(markdown(document))


def compared(values: dict[str, Any]) -> dict[str, Any]:
    """Run everything; the file grows with every result, so that a broken run is not lost."""
    plan, order = _plan(values), Order(values["order"])
    document = _described(plan, order)

    async def run() -> None:
        async for result in ORDERS[order](plan):
            document["results"].append(result.as_dict())
            _print(result)
            if values["file"]:
                values["file"].write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))

    asyncio.run(run())
    return document


def _plan(values: dict[str, Any]) -> Plan:
    order, names = Order(values["order"]), values["names"] or _USUAL
    chosen = [workload for workload in WORKLOADS if workload.name in names]
    if order is Order.TOGETHER:
        if alone := [
            workload.name for workload in chosen if workload.needs_to_be_alone and values["names"]
        ]:
            raise click.UsageError(
                f"{alone[0]} needs the machine alone: leave it out, or --order in-turn"
            )
        chosen = [workload for workload in chosen if not workload.needs_to_be_alone]
    return Plan(
        workloads=chosen,
        binary=values["binary"].absolute(),
        flags=Flags(
            model=Path(find_model(values["model"])),
            slots=values["slots"],
            ctx=values["ctx"],
            threads=values["threads"] or len(os.sched_getaffinity(0)),
            extra=values["extra"],
        ),
        rounds=values["rounds"],
        seed=values["seed"],
    )


def _described(plan: Plan, order: Order) -> dict[str, Any]:
    return {
        "format": 1,
        "machine": machine(),
        "versions": versions(plan.binary),
        "settings": {
            "model": plan.flags.model.name,
            "slots": plan.flags.slots,
            "ctx": plan.flags.ctx,
            "threads": plan.flags.threads,
            "rounds": plan.rounds,
            "seed": plan.seed,
            "servers": order.value,
            "flags": " ".join(("--kv-unified", *plan.flags.extra)),
        },
        "results": [],
    }


def _print(result: Result) -> None:
    text = "  ".join(f"{name} {value:.4g}" for name, value in result.figures.items())
    click.echo(f"round {result.round + 1}  {result.workload:<14}{result.side:<14}{text}", err=True)


if __name__ == "__main__":
    main()
