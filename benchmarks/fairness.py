"""One flooding key beside nine normal ones: `python -m benchmarks.fairness`, on a simulated clock.

The normal keys keep as many requests open as `--streams` says: with four they want more than the
pool has, with one they leave slots free, which the flood then takes.
"""

import click

from tests.gateway.flood import FLOOD, Crowd


@click.command()
@click.option("--streams", default=4, help="Open requests of each normal key.")
@click.option("--seconds", default=120.0, help="Simulated time.")
def main(streams: int, seconds: float) -> None:
    """Print shares, times to first token and refusals, with and without the flood."""
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
