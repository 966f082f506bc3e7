"""`python -m tests.faults [NAME …]`: run the fault matrix and print its table."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gateway.soak.ledger import FaultRow, table
from gateway.soak.pool import PoolFailed
from gateway.soak.scene import ExpectedAnswers
from tests.faults.case import FaultCase, run_case
from tests.faults.matrix import MATRIX

PAGE = Path(__file__).parents[2] / "docs" / "running" / "faults.md"
BEGIN, END = "<!-- written by `make faults ARGS=--write` -->", "<!-- end of the table -->"


def main() -> int:
    """Run the cases that are named, or all; the exit code is 1 if one went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a case, its number, or its group")
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--list", action="store_true", help="only say what there is")
    parser.add_argument(
        "--write", action="store_true", help="put the rows of these cases into the documents"
    )
    chosen = parser.parse_args()
    cases = [one for one in MATRIX if not chosen.names or _is_meant(one.name, chosen.names)]
    if chosen.list:
        for case in cases:
            print(f"{case.name:10} {case.what}")
        return 0
    if os.geteuid():
        cases = [case for case in cases if not case.needs_root]
    expected = ExpectedAnswers(chosen.seed)
    outcomes = [(case, _run(case, expected)) for case in cases]
    text = table([row for case, row in outcomes if row.n_sent])
    print(text)
    if chosen.write:
        write(text, chosen.seed)
    bad = [case.name for case, row in outcomes if not case.passes(row)]
    print(f"{len(outcomes)} faults, {len(bad)} failed: {', '.join(bad) or 'none'}")
    return 1 if bad else 0


def _is_meant(name: str, wanted: Sequence[str]) -> bool:
    """Whether a case is wanted: by its name, its number (`A1`) or the letter of its group."""
    return any(one in (name, name.partition(" ")[0], name[0]) for one in wanted)


def write(found: str, seed: int) -> None:
    """Put the rows of a table into that of the page; those of other cases stay as they are."""
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    assert tail, f"{PAGE} has no place for the table"
    head_lines, rows = found.splitlines()[:2], {}
    for line in [*rest.partition(END)[0].splitlines(), *found.splitlines()[2:]]:
        if line.startswith("| "):
            rows[line.split("|")[1].strip()] = line
    found = "\n".join([*head_lines, *(rows[one.name] for one in MATRIX if one.name in rows)])
    note = f"Seed {seed}, the fake engine unless a row says *model*.\n\n"
    PAGE.write_text(f"{head}{BEGIN}\n\n{note}{found}\n\n{END}{tail}")


def _run(case: FaultCase, expected: ExpectedAnswers) -> FaultRow:
    start_s = time.monotonic()
    try:
        row = asyncio.run(run_case(case, expected))
    except PoolFailed as error:
        row = FaultRow(name=case.name, what=case.what, violations=(str(error),))
    is_well = case.passes(row)
    verdict = "ok" if is_well else "FAILED"
    print(f"{case.name}: {verdict} ({time.monotonic() - start_s:.1f} s)", file=sys.stderr)
    for line in () if is_well else row.problems():
        print(f"    {line[:3000]}", file=sys.stderr, flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
