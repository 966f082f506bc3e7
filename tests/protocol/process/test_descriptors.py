"""Processes that may open too few files to work: `ulimit -n 20`."""

import subprocess
import sys

import pytest

from protocol.errors import EXIT_CONFIG

FEW = "this process may open 20 files and needs 64: raise `ulimit -n` or LimitNOFILE="


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["worker.cli serve", "worker.cli worker --connect ipc://x", "gateway --port 0"]
)
def test_a_process_that_may_open_too_few_files_ends_with_one_line(command: str) -> None:
    limited = f'ulimit -n 20; exec "{sys.executable}" -m {command}'
    ended = subprocess.run(
        ["sh", "-c", limited], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == EXIT_CONFIG
    (line,) = (ended.stdout + ended.stderr).strip().splitlines()
    assert FEW in line
