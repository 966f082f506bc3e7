"""A service may be started without standard streams: no other file may take their numbers."""

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_command_whose_standard_streams_are_closed_ends_as_always(closed: str) -> None:
    command = f'exec "{sys.executable}" -m worker.cli serve --models-dir /no/such/folder {closed}'
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 78
