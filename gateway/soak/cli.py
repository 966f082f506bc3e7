"""The command line of `llamapool soak`."""

import asyncio
import signal
import time
from typing import Any

import click

from gateway.bench.options import NumberRange
from gateway.soak.ledger import table
from gateway.soak.pool import PoolFailed
from gateway.soak.scene import ENGINES, PoolShape
from gateway.soak.soak import SoakPlan
from gateway.soak.soak import soak as run_soak


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--minutes",
    default=1.0,
    show_default=True,
    type=NumberRange(0.05, 10_000),
    help="How long the load lasts.",
)
@click.option(
    "--seed", type=int, help="Seed of load and faults; by default from the clock, and printed."
)
@click.option(
    "--workers",
    default=4,
    show_default=True,
    type=click.IntRange(2, 64),
    help="Worker processes of the pool.",
)
@click.option(
    "--gateways",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Gateway processes of the pool.",
)
@click.option(
    "--clients",
    default=8,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Clients that send requests at the same time.",
)
@click.option(
    "--engine",
    default="fake",
    show_default=True,
    type=click.Choice(ENGINES),
    help="fake: invented text, no model; model: the model that is installed with llamapool.",
)
def soak(minutes: float, seed: int | None, **shape: Any) -> None:
    """Start a pool, load it, break it at random, and account for every request.

    Prints a table of faults. The exit code is 1 if a request was lost, doubled or answered wrongly,
    or if slots, tasks, descriptors or memory leaked.
    """
    seed = int(time.time()) if seed is None else seed
    click.echo(f"seed {seed}")
    plan = SoakPlan(
        seconds=minutes * 60,
        seed=seed,
        n_clients=shape["clients"],
        shape=_pool(**shape),
    )
    for number in (signal.SIGTERM, signal.SIGHUP):  # else the pool would run on without end
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        rows = asyncio.run(run_soak(plan, click.echo))
    except PoolFailed as error:
        click.echo(f"the pool failed: {error}", err=True)
        raise SystemExit(1) from None
    click.echo("\n" + table(rows))
    problems = [line for row in rows for line in row.problems()]
    click.echo("\n".join(problems))
    if not all(row.is_well() for row in rows):
        raise SystemExit(1)


def _pool(*, engine: str, workers: int, gateways: int, **_: Any) -> PoolShape:
    shape = PoolShape(
        engine=engine,
        n_workers=workers - (gateways == 1),
        worker={"stall_s": 3.0} if engine == "fake" else {},
        gateway={"gateways": gateways} if gateways > 1 else {},
    )
    return shape if gateways > 1 else shape.with_far()  # the gate leads to one gateway
