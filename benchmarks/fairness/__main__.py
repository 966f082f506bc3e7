"""What nine normal keys notice of a tenth that floods the pool, on a simulated clock.

`--http` measures a real pool instead: a gateway, two workers, keys from a file, and clients over
HTTP. The tenth key has a process of its own, which starts and stops several times while the nine
keys ask all the time, so that other load of the machine affects all situations alike. A step of the
fake engine sleeps, so its workers hardly compete for cores; with `--engine model` they do.

Each normal key keeps `--streams` requests open: with four, the nine keys want more slots than the
pool has; with one, they leave slots free, which the flood then takes.
"""

import asyncio

import click

from benchmarks.fairness.over_http import Plan, run
from gateway.soak.scene import ENGINES
from tests.gateway.flood import FLOOD, Crowd


@click.command()
@click.option("--streams", default=4, help="Open requests of each normal key.")
@click.option("--seconds", default=120.0, help="Simulated time; with --http, real time of all.")
@click.option("--turns", default=6, help="With --http: how often the flood starts and stops.")
@click.option("--http", "is_real", is_flag=True, help="Ask a real gateway over HTTP.")
@click.option("--engine", type=click.Choice(ENGINES), default="fake", help="With --http.")
@click.option("--step-ms", default=20.0, help="With --http: a step of the fake engine.")
@click.option("--token-ms", default=0.0, help="With --http: what each token adds to such a step.")
@click.option("--explain", is_flag=True, help="With --http: where the time to first token went.")
def main(  # noqa: PLR0913 - one for each option
    streams: int,
    seconds: float,
    turns: int,
    *,
    is_real: bool,
    engine: str,
    step_ms: float,
    token_ms: float,
    explain: bool,
) -> None:
    """Print shares, times to first token and refusals, with and without the flood."""
    if not is_real:
        _simulate(streams, seconds)
        return
    plan = Plan(
        streams=streams,
        seconds=seconds,
        turns=turns,
        engine=engine,
        step_ms=step_ms,
        token_ms=token_ms,
        explains=explain,
    )
    asyncio.run(run(plan))


def _simulate(streams: int, seconds: float) -> None:
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
