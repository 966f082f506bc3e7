"""`python -m tests.hostile [GROUP …]`: send the corpus to a real pool and print counts."""

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.hostile.attack import Outcome, attack
from tests.hostile.case import HostileCase
from tests.hostile.corpus import GROUPS
from tests.hostile.health import Footprint, harm_in_log, leaks, loop_lag
from tests.hostile.neighbours import Neighbours
from tests.hostile.pool import TargetPool, start_pool, target_of
from tests.hostile.wire_frames import attack_wire

WIRE = "wire_frames"
"""The group that goes to the workers' socket and not over HTTP."""


def main() -> int:
    """Run the groups that are named, or all; the exit code is 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join([*GROUPS, WIRE]))
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--at-once", type=int, default=3, help="cases sent at the same time")
    parser.add_argument("--careful", action="store_true", help="name the case after which one died")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pool = start_pool(Path(folder))
        try:
            return _run(pool, chosen)
        finally:
            pool.signal(signal.SIGTERM)
            pool.close()


def _run(pool: TargetPool, chosen: argparse.Namespace) -> int:
    target = target_of(pool)
    before = Footprint.of(pool)
    n_bad = n_sent = 0
    with Neighbours(pool.url) as neighbours:
        for group in chosen.groups or [*GROUPS, WIRE]:
            start_s = time.monotonic()
            if group == WIRE:
                n_sent += (n := attack_wire(f"ipc://{pool.socket}", "w-1"))
                print(f"{group}: {n} connections in {time.monotonic() - start_s:.0f} s")
            else:
                cases = [one for one in GROUPS[group](target) if chosen.only in str(one)]
                send_all = _careful if chosen.careful else _at_once
                outcomes = send_all(pool, cases, chosen.at_once)
                n_sent += len(outcomes)
                n_bad += _report(group, outcomes, time.monotonic() - start_s)
            print(f"    neighbours: {neighbours}", flush=True)
    left = leaks(pool, before)
    harm = harm_in_log(pool)
    print(f"neighbours: {neighbours}")
    print(f"{n_sent} sent, {n_bad} bad; leaks: {left or 'none'}; harm in the log: {harm or 'none'}")
    for name, lag in loop_lag(pool).items():
        print(f"{name}: {lag}")
    is_well = not (n_bad or left or harm or neighbours.faults or neighbours.longest_gap_s > 1)
    print("all is well" if is_well else "HARM WAS DONE")
    return 0 if is_well else 1


def _at_once(pool: TargetPool, cases: Sequence[HostileCase], at_once: int) -> list[Outcome]:
    return attack(pool.url, cases, at_once=at_once)


def _careful(pool: TargetPool, cases: Sequence[HostileCase], _: int) -> list[Outcome]:
    outcomes = []
    for case in cases:
        n_before = len(harm_in_log(pool))
        outcomes += attack(pool.url, [case], at_once=1)
        for line in harm_in_log(pool)[n_before:]:
            print(f"    after {case}: {line}", flush=True)
    return outcomes


def _report(group: str, outcomes: list[Outcome], seconds: float) -> int:
    statuses = Counter("hung" if one.is_hung else one.status for one in outcomes)
    bad = [one for one in outcomes if not one.is_good]
    counts = " ".join(f"{status}:{n}" for status, n in sorted(statuses.items(), key=str))
    print(f"{group}: {len(outcomes)} requests in {seconds:.0f} s; {counts}; {len(bad)} bad")
    for one in bad[:20]:
        print(f"    {one}")
    for one in sorted(outcomes, key=lambda one: -one.seconds)[:2]:
        print(f"    slow: {one.case} {one.seconds:.1f} s", flush=True)
    return len(bad)


if __name__ == "__main__":
    sys.exit(main())
