"""`python -m tests.parity.random_requests.templates --llama-server PATH FOLDER`: prompts compared.

Both servers render random chats, with tools and without, and those of `dialogs.py` by each chat
template of a folder, such as `models/templates` of llama.cpp's repository.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.cores import threads
from tests.models.shallow import shallow_path
from tests.parity.random_requests.__main__ import pool
from tests.parity.random_requests.drawn.cases import random_case
from tests.parity.random_requests.drawn.dialogs import DIALOGS
from tests.parity.record import running

_KINDS = ("chat", "tools")
_SHOWN = 60
"""Characters shown before and after the first difference."""


def main() -> int:
    """Compare; the exit code is 1 if any prompt differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-server", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=8, help="chats of each kind")
    parser.add_argument("folder", type=Path)
    chosen = parser.parse_args()
    n_different = 0
    for path in sorted(chosen.folder.glob("*.jinja")):
        found = list(_differences(chosen, path))
        n_different += len(found)
        n_asked = len(_KINDS) * chosen.count + len(DIALOGS)
        sys.stdout.write(f"{path.stem}: {len(found)} of {n_asked} differ\n")
        sys.stdout.writelines(f"    {line}\n" for line in found[:4])
    return int(bool(n_different))


def _differences(chosen: argparse.Namespace, template: Path) -> Iterator[str]:
    arguments = ["-m", shallow_path(), "-a", "smol", "-np", "1", "-c", "2048"]
    arguments += ["-t", str(threads()), "--jinja", "--chat-template-file", str(template)]
    with running([str(chosen.llama_server), *arguments]) as theirs, pool(arguments) as ours:
        for name, body in _bodies(chosen):
            expected, got = _prompt(theirs, body), _prompt(ours, body)
            if expected != got:
                yield f"{name}: {_first_difference(expected, got)}"


def _bodies(chosen: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    for kind in _KINDS:
        for number in range(chosen.count):
            yield f"{kind} #{number}", random_case(kind, chosen.seed, number).body
    yield from DIALOGS.items()


def _prompt(server: httpx.Client, body: Any) -> str:
    """Return the prompt, or the status of an error: its words are each server's own."""
    answer = server.post("/apply-template", json=body)
    if answer.status_code != httpx.codes.OK:
        return f"an error {answer.status_code // 100}xx"
    return str(answer.json()["prompt"])


def _first_difference(expected: str, got: str) -> str:
    pairs = enumerate(zip(expected, got, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(expected), len(got)))
    start, end = max(0, at - _SHOWN), at + _SHOWN
    return f"{expected[start:end]!r} became {got[start:end]!r}"


if __name__ == "__main__":
    sys.exit(main())
