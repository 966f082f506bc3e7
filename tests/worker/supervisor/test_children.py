"""The processes of the supervisor, one by one."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.process.notify import Notifier
from worker.supervisor.children.children import Children
from worker.supervisor.children.launch import Launch
from worker.supervisor.children.restart_policy import RestartPolicy
from worker.supervisor.terminal import Console

CLOSES_ALL = """
import os, time
print("last words", flush=True)
os.closerange(0, 64)
time.sleep(60)
"""


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    launch = Launch(
        name="w", argv=(sys.executable, "-S", "-c", CLOSES_ALL), env=os.environ, model="m"
    )
    console, notifier = Console(2, is_terminal=False), Notifier(None, "", None)
    made = Children((launch,), tmp_path, console, notifier, lambda _: RestartPolicy())
    made.start_due(0.0)
    yield made
    made.kill(made.watches)
    made.selector.close()


def test_a_process_that_has_closed_its_output_and_dies_slowly_wakes_nobody(
    children: Children, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver may take seconds to free a GPU after the kernel has closed the files."""
    n_woken, until = 0, time.monotonic() + 10
    while time.monotonic() < until and (ready := children.selector.select(0.5)):
        for key, _ in ready:
            children.guarded(key.data)
        n_woken += 1
    assert n_woken < 10
    assert "last words" in caplog.text
    (watch,) = children.watches
    watch.child.kill()
    while watch.child.is_alive:
        children.reap(time.monotonic(), restarts=False)
    assert "unexpected exception" not in caplog.text
