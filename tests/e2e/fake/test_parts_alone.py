"""A gateway and its workers without a supervisor, as units and containers run them."""

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.process import LIMIT_S, Process, python

pytestmark = pytest.mark.slow

CONFIG = """
[gateway]
port = 0

[[worker]]
name = "w"
alias = "fake"
backend = "fake"
count = 2
"""


class Parts:
    """A gateway and two workers that meet in a runtime directory."""

    def __init__(self, folder: Path, running: ExitStack) -> None:
        (folder / "pool.toml").write_text(CONFIG)
        self._config = str(folder / "pool.toml")
        self._running = running
        self.folder = folder / "run"
        self.folder.mkdir(mode=0o700)
        self.gateway = self._start("gateway")
        self.workers = [self._start("worker", "--name", f"w-{number}") for number in (1, 2)]
        self.gateway.wait_for_count("worker ready", 2)

    def _start(self, *command: str) -> Process:
        argv = python("-m", "worker.cli", *command, "--config", self._config)
        process = Process(argv, {"RUNTIME_DIRECTORY": str(self.folder)})
        self._running.callback(process.close)
        return process

    def ask(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run an administrator's command and return how it went."""
        return subprocess.run(
            python("-m", "worker.cli", *command, "--runtime-dir", str(self.folder)),
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with ExitStack() as running:
        yield Parts(tmp_path, running)


def test_status_and_drain_find_a_gateway_without_a_supervisor(parts: Parts) -> None:
    shown = parts.ask("status").stdout
    assert re.findall(r"^(\S+) .* ready", shown, re.MULTILINE) == ["w-1", "w-2"]
    assert parts.ask("drain", "w-1", "--wait").stdout == "w-1 has left\n"
    assert parts.workers[0].wait() == 0
    assert "only worker" in parts.ask("drain", "w-2").stderr
    for command in (("undrain", "w-1"), ("rollout", "--wait"), ("reload",)):
        done = parts.ask(*command)
        assert (done.returncode, "has no supervisor" in done.stderr) == (1, True), done


def test_a_hang_up_is_answered_in_the_log_and_no_socket_stays_behind(parts: Parts) -> None:
    parts.gateway.signal(signal.SIGHUP)
    parts.gateway.wait_for("configuration not reloaded .*without `llamapool serve`")
    parts.gateway.signal(signal.SIGTERM)
    assert parts.gateway.wait() == 0
    assert not list(parts.folder.glob("*.sock"))
