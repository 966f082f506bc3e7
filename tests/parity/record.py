"""Record what the real llama-server answers.

    python -m tests.parity.record --llama-server PATH

Run it after a change of the llama.cpp that is pinned; the result is test data.
"""

import argparse
import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.processes import free_port, wait_until_ok
from tests.parity import recording
from tests.parity.ask import ask
from tests.parity.cases import Case
from tests.parity.setups import SETUPS

DEAD = {"status": 0, "type": "", "body": "the server died"}


def main() -> None:
    """Send every case and write the answers; a case that kills the server is written as such."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-server", required=True, type=Path)
    parser.add_argument("--setup", action="append", choices=SETUPS, help="Record these alone.")
    args = parser.parse_args()
    answers = recording.read() if args.setup else {}
    for setup in (SETUPS[name] for name in args.setup or SETUPS):
        command = [str(args.llama_server), "-m", setup.model, *setup.arguments]
        answers |= recorded(command, setup.cases)
    recording.write(answers)


def recorded(command: list[str], cases: Sequence[Case]) -> dict[str, Any]:
    """Return the answer to each case; what a server left unanswered, a new one is asked again."""
    answers: dict[str, Any] = {}
    left = [*cases]
    while left:
        with running(command) as client, contextlib.suppress(httpx.TransportError):
            while left:
                first = left[0].name not in answers
                answers.setdefault(left[0].name, DEAD)
                answers[left[0].name] = ask(client, left[0])
                left.pop(0)
        if left and not first:
            left.pop(0)
    return answers


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[httpx.Client]:
    """Start a server and wait until it can serve.

    The port is its own: llama-server shares a taken one, and requests go to either.
    """
    port = free_port()
    command = [*command, *["-fa", "off", "--cache-ram", "0", "--port"], str(port)]
    folders = (str(Path(command[0]).parent), os.environ.get("LD_LIBRARY_PATH"))
    env = os.environ | {
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders)),
        "OMP_WAIT_POLICY": "passive",
    }
    process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    try:
        wait_until_ok(process, f"http://127.0.0.1:{port}/health")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            yield client
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
