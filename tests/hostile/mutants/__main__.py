"""`python -m tests.hostile.mutants --seed N --minutes M`: send mutants, print the faults."""

import argparse
import itertools
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.hostile.health import Footprint, leaks, loop_lag
from tests.hostile.mutants.mutate import mutant
from tests.hostile.mutants.run import FAKE, Probe, send_mutants, start

_SHOWN = 400


def main() -> int:
    """Run; the exit code is 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=0, help="so many seeds, not for a time")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--real", action="store_true", help="not the fake engine")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="only print what would be sent")
    chosen = parser.parse_args()
    last = chosen.seed + chosen.count if chosen.count else sys.maxsize
    if chosen.show:
        for seed in range(chosen.seed, min(last, chosen.seed + 1000)):
            case, _ = mutant(seed)
            print(case.name, case.raw or case.body, case.headers)
        return 0
    return _run(chosen, _seeds(chosen.seed, last, chosen.minutes))


def _seeds(first: int, last: int, minutes: float) -> Iterator[int]:
    until = time.monotonic() + 60 * minutes
    enough = itertools.takewhile(lambda _: time.monotonic() < until, itertools.count(first))
    return itertools.takewhile(lambda seed: seed < last, enough)


def _run(chosen: argparse.Namespace, seeds: Iterator[int]) -> int:
    bound_s = 30.0 if chosen.real else 10.0
    with tempfile.TemporaryDirectory() as folder:
        pool = start(Path(folder), "" if chosen.real else FAKE)
        try:
            before = Footprint.of(pool)
            with Probe(pool.url) as probe:
                tally = send_mutants(pool, seeds, bound_s=bound_s, at_once=chosen.at_once)
            tally.faults += leaks(pool, before)
            lags = loop_lag(pool)
        finally:
            pool.signal(signal.SIGTERM)
            pool.close()
    for fault in tally.faults:
        print(fault[:_SHOWN])
    print(tally)
    print(f"/livez <= {probe.longest_s:.2f} s; {lags}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
