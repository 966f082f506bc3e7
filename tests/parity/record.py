"""Record what the real llama-server answers.

    python -m tests.parity.record --llama-server PATH [--model FILE]

Run it after a change of the llama.cpp that is pinned; the result is test data.
"""

import argparse
import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.parity.ask import ask
from tests.parity.cases import CASES
from tests.parity.chats import CHATS
from worker.resolve import find_model

RECORDED = Path(__file__).parent / "recorded.json"
PORT = 18077


def main() -> None:
    """Send every case and write the answers; a case that kills the server is written as such."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-server", required=True, type=Path)
    parser.add_argument("--model", default=find_model(""))
    args = parser.parse_args()
    answers = {}
    left = [*CASES, *CHATS]
    while left:
        with running(args.llama_server, args.model) as client:
            while left:
                case = left.pop(0)
                try:
                    answers[case.name] = ask(client, case)
                except httpx.RemoteProtocolError:
                    answers[case.name] = {"status": 0, "type": "", "body": "the server died"}
                    break
    text = json.dumps(answers, indent=0, ensure_ascii=False, sort_keys=True)
    RECORDED.write_text(text.replace(args.model, "MODEL") + "\n", encoding="utf-8")


@contextlib.contextmanager
def running(binary: Path, model: str) -> Iterator[httpx.Client]:
    """Start a server of one slot and wait until it can serve."""
    arguments = "-a smol -np 1 -c 2048 -fa off -t 2 --metrics --cache-ram 0 --port"
    command = [str(binary), "-m", model, *arguments.split(), str(PORT)]
    env = os.environ | {"LD_LIBRARY_PATH": str(binary.parent), "OMP_WAIT_POLICY": "passive"}
    process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{PORT}", timeout=120) as client:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if client.get("/health").status_code == 200:
                        break
                time.sleep(0.1)
            yield client
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
