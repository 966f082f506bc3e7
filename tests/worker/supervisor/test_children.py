"""The processes of the supervisor, one by one."""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
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
    while any(watch.child.is_alive for watch in made.watches):
        made.reap(0.0, restarts=False)
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


def test_the_restarts_of_gateways_are_counted_also_after_they_were_replaced(
    children: Children,
) -> None:
    launch = children.watches[0].child.launch
    gateways = [children.add(replace(launch, name=f"gateway-{i}", model="")) for i in range(3)]
    children.start_due(0.0)
    assert children.n_gateway_restarts == 0
    for n, watch in enumerate([*gateways, children.watches[0]], 1):
        watch.child.kill()
        while watch.child.is_alive:
            children.reap(0.0, restarts=True)
        children.start_due(60.0)
        assert watch.child.pid and watch.n_restarts == 1
        assert children.n_gateway_restarts == min(n, 3), "a worker is no gateway"
    children.kill(gateways)
    while any(watch.child.is_alive for watch in gateways):
        children.reap(0.0, restarts=False)
    del children.watches[1:]
    assert children.n_gateway_restarts == 3
