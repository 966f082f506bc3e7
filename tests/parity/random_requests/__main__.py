"""`python -m tests.parity.random_requests --llama-server PATH --kind chat --count 200`."""

import argparse
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from tests.e2e.served import serving
from tests.parity.random_requests.differ import differences
from tests.parity.random_requests.drawn import cases
from tests.parity.random_requests.kinds import KINDS, random_steps
from tests.parity.random_requests.servers import arguments
from tests.parity.random_requests.steps import send
from tests.parity.record import running

_ENV = {"LLAMA_MEDIA_MARKER": "<__media__>"}
"""Each server draws a marker of its own."""
_Found = dict[str, list[str]]


def main() -> int:
    """Ask both servers; the exit code is 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-server", required=True, type=Path)
    parser.add_argument("--kind", action="append", choices=KINDS, help="all, if none is given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100, help="of each kind")
    parser.add_argument("--only", type=int, help="send this number alone, and print all of it")
    parser.add_argument("--template", default="", help="a file with a chat template")
    chosen = parser.parse_args()
    os.environ.update(_ENV)
    found: _Found = defaultdict(list)
    by_server = defaultdict(list)
    for kind in chosen.kind or KINDS:
        for server in KINDS[kind].servers:
            by_server[server].append(kind)
    for server, kinds in by_server.items():
        _compare(chosen, server, kinds, found)
    for kind, lines in sorted(found.items(), key=lambda item: -len(item[1])):
        sys.stdout.write(f"{len(lines):4} {kind}\n")
        sys.stdout.writelines(f"       {line}\n" for line in lines[:2])
    return int(bool(found))


@contextmanager
def pool(arguments: Sequence[str]) -> Iterator[httpx.Client]:
    """Serve with these options; yields a client of the pool."""
    with serving("--workers", "1", "--port", "0", *arguments, env=_ENV) as served:
        yield served.client


def _compare(chosen: argparse.Namespace, server: str, kinds: Sequence[str], found: _Found) -> None:
    numbers = range(chosen.count) if chosen.only is None else [chosen.only]
    n_asked = n_equal = 0
    with TemporaryDirectory() as folder:
        options = arguments(server, Path(folder), chosen.template)
        with running([str(chosen.llama_server), *options]) as theirs, pool(options) as ours:
            for kind in kinds:
                for number in numbers:
                    lines = list(_differences(chosen, theirs, ours, kind, number))
                    n_asked, n_equal = n_asked + 1, n_equal + (not lines)
                    for line in {_kind_of(line): line for line in reversed(lines)}.values():
                        found[f"{server}: {kind} {_kind_of(line)}"].append(f"#{number} {line}")
    sys.stdout.write(f"{server}: {n_asked} asked, {n_equal} equal\n")


def _differences(
    chosen: argparse.Namespace, theirs: httpx.Client, ours: httpx.Client, kind: str, number: int
) -> Iterator[str]:
    before: dict[str, Any] = {}
    was_left = False
    for step in random_steps(kind, chosen.seed, number):
        answers = send(theirs, step, before), send(ours, step, before)
        before = answers[0]
        was_left = was_left or step.n_events > 0 or step.mixes_slots
        if chosen.only is not None:
            for what in (f"{step.method} {step.path}", step.body, *answers):
                sys.stdout.write(json.dumps(what, ensure_ascii=False, indent=1) + "\n")
        may_be_wrong = kind not in cases.KINDS
        lines = differences(*answers, step.path, was_left=was_left, may_be_wrong=may_be_wrong)
        if not step.is_compared:
            continue
        yield from (f"{line} ({step.path} {json.dumps(step.body)[:230]})" for line in lines)
        if lines and kind == "session":
            return


def _kind_of(line: str) -> str:
    """Leave out of a difference what is of its request alone."""
    return re.sub(r"\[\d+\]", "[]", line.split(": ", maxsplit=1)[0])[:60]


if __name__ == "__main__":
    sys.exit(main())
