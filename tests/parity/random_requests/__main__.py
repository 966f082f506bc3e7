"""`python -m tests.parity.random_requests --llama-server PATH --kind chat --count 200`."""

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.cores import threads
from tests.e2e.served import serving
from tests.models.shallow import shallow_path
from tests.parity.ask import ask
from tests.parity.random_requests.cases import KINDS, random_case
from tests.parity.random_requests.differ import differences
from tests.parity.record import running

_GAP = {"pre": 7, "suf": 8, "mid": 9, "rep": 3, "sep": 5}
"""Tokens of the default model that have nothing to do with a gap, for `infill`."""


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
    arguments = ["-m", shallow_path(), "-a", "smol", "-np", "1", "-c", "2048"]
    arguments += ["-t", str(threads()), "-fa", "off"]
    if chosen.template:
        arguments += ["--jinja", "--chat-template-file", chosen.template]
    for name, token in _GAP.items():
        arguments += ["--override-kv", f"tokenizer.ggml.fim_{name}_token_id=int:{token}"]
    command = [str(chosen.llama_server), *arguments]
    with running(command) as theirs, pool(arguments) as ours:
        found = _compare(chosen, theirs, ours)
    for kind, lines in sorted(found.items(), key=lambda item: -len(item[1])):
        sys.stdout.write(f"{len(lines):4} {kind}\n")
        sys.stdout.writelines(f"       {line}\n" for line in lines[:2])
    return int(bool(found))


@contextmanager
def pool(arguments: Sequence[str]) -> Iterator[httpx.Client]:
    """Serve with these options; yields a client of the pool."""
    with serving("--workers", "1", "--port", "0", *arguments) as served:
        yield served.client


def _compare(
    chosen: argparse.Namespace, theirs: httpx.Client, ours: httpx.Client
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    numbers = range(chosen.count) if chosen.only is None else [chosen.only]
    n_asked = n_equal = 0
    for kind in chosen.kind or KINDS:
        for number in numbers:
            case = random_case(kind, chosen.seed, number)
            answers = ask(theirs, case), ask(ours, case)
            lines = differences(*answers, case.path)
            n_asked, n_equal = n_asked + 1, n_equal + (not lines)
            for line in {_kind_of(line): line for line in reversed(lines)}.values():
                found[f"{kind} {_kind_of(line)}"].append(f"#{number} {line}")
            if chosen.only is not None:
                for what in (case.body, *answers):
                    sys.stdout.write(json.dumps(what, ensure_ascii=False, indent=1) + "\n")
    sys.stdout.write(f"{n_asked} asked, {n_equal} equal\n")
    return found


def _kind_of(line: str) -> str:
    """Leave out of a difference what is of its request alone."""
    return re.sub(r"\[\d+\]", "[]", line.split(": ", maxsplit=1)[0])[:60]


if __name__ == "__main__":
    sys.exit(main())
