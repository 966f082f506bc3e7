"""`llamapool soak` takes its pool with it, however it is ended."""

import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.process import LIMIT_S, Process, python

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_pool_of_a_soak(number: signal.Signals, tmp_path: Path) -> None:
    argv = python("-m", "worker.cli", "soak", "--minutes", "1", "--workers", "2")
    with closing(Process(argv, {"TMPDIR": str(tmp_path)})) as one:
        until = time.monotonic() + LIMIT_S
        while not list(tmp_path.glob("soak-*/run/pool.json")) and time.monotonic() < until:
            time.sleep(0.05)
        one.signal(number)
        assert one.wait() == 1
    assert list(tmp_path.glob("soak-*")) == []
