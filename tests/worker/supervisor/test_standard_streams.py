"""A service may be started without standard streams: no other file may take their numbers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_command_whose_standard_streams_are_closed_ends_as_always(closed: str) -> None:
    command = f'exec "{sys.executable}" -m worker.cli serve --models-dir /no/such/folder {closed}'
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 78


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["config", "show"]])
def test_output_that_a_full_disk_does_not_take_is_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        argv = [sys.executable, "-m", "worker.cli", *words]
        buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
        done = subprocess.run(
            argv, stdout=full, stderr=subprocess.PIPE, text=True, env=buffered, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "llamapool: cannot write: No space left on device\n"


@pytest.mark.slow
def test_a_working_directory_that_is_gone_ends_no_command(tmp_path: Path) -> None:
    (tmp_path / "pool.toml").write_text('[[worker]]\nbackend = "fake"\n')
    (tmp_path / "gone").mkdir()
    show = f'"{sys.executable}" -m worker.cli config show --config ../pool.toml'
    command = f'cd "{tmp_path}/gone" && rmdir "{tmp_path}/gone" && exec {show}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
