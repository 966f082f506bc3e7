"""Replacing the gateways, without processes."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from worker.supervisor.children.children import Children
from worker.supervisor.children.launch import Launch
from worker.supervisor.children.managed_child import ChildState
from worker.supervisor.children.watch import ChildWatch
from worker.supervisor.gateways import GatewayReload
from worker.supervisor.handover import Handover

OLD = Launch(name="gateway", argv=("old",), env={}, drain_timeout_s=1.0)
NEW = Launch(name="gateway", argv=("new",), env={}, drain_timeout_s=5.0)


class Manager:
    """A service manager that hears of reloads."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def reloading(self) -> None:
        self.told.append("reloading")

    def send(self, **fields: Any) -> None:
        self.told += fields


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    unused: Any = None
    made = Children((OLD,), tmp_path, unused, unused, unused)
    with made.selector:
        yield made


def test_a_gateway_that_starts_is_replaced_once_it_serves(children: Children) -> None:
    manager: Any = Manager()
    reload = GatewayReload(children, manager, lambda: [NEW], lambda _: None)
    (old,) = children.gateways
    old.child.become(ChildState.STARTING)
    reload.ask()
    reload.turn(0.0)
    assert children.gateways == [old]
    assert reload.note == "replacing the gateway"
    old.child.become(ChildState.READY)
    reload.turn(1.0)
    assert [watch.child.launch.argv for watch in children.gateways] == [("old",), ("new",)]


def test_a_gateway_that_has_died_starts_again_with_the_new_configuration(
    children: Children,
) -> None:
    manager: Any = Manager()
    reload = GatewayReload(children, manager, lambda: [NEW], lambda _: None)
    (old,) = children.gateways
    reload.ask()
    reload.turn(0.0)
    assert old.child.launch is NEW
    assert reload.note == ""


def test_a_full_disk_leaves_the_gateways_as_they_are_and_ends_the_reload(
    children: Children,
) -> None:
    def fails() -> list[Launch]:
        raise OSError(errno.ENOSPC, "No space left on device")

    manager: Any = Manager()
    reload = GatewayReload(children, manager, fails, lambda _: None)
    (old,) = children.gateways
    reload.ask()
    reload.turn(0.0)
    assert old.child.launch is OLD
    assert manager.told == ["reloading", "READY"]
    assert reload.note == "the last reload failed, see the log"


def test_a_new_gateway_awaits_the_workers_of_one_that_dies_meanwhile(children: Children) -> None:
    (old,) = children.gateways
    worker = children.add(Launch(name="w", argv=("w",), env={}, model="m"), due_at=0.0)
    for watch in (old, worker):
        watch.child.become(ChildState.STARTING)
        watch.child.become(ChildState.READY)
    handover = Handover(children, old, NEW, 0.0)
    handover.new.child.become(ChildState.STARTING)
    handover.new.child.reports |= {"X_PREPARED": "1", "X_BOUND": "1", "X_WORKERS": "0"}
    old.child.become(ChildState.WAITING)
    handover.turn(1.0)
    assert list(handover.deadlines()) == [4.0]
    handover.new.child.reports["X_WORKERS"] = "1"
    handover.turn(2.0)
    assert list(handover.deadlines()) == [60.0], "it begins to serve"


def test_each_gateway_has_the_time_to_finish_that_it_was_started_with(children: Children) -> None:
    (old,) = children.gateways
    for state in (ChildState.STARTING, ChildState.READY):
        old.child.become(state)
    assert children.drain_timeout_s == 1.0
    handover = Handover(children, old, NEW, 0.0)
    handover.new.child.become(ChildState.STARTING)
    assert children.drain_timeout_s == 5.0, "the new one is told to end, too"
    old.child.reports["X_ASIDE"] = "0"
    handover.new.child.reports |= {"X_PREPARED": "1", "X_BOUND": "1", "X_WORKERS": "0"}
    handover.turn(1.0)
    handover.new.child.become(ChildState.READY)
    handover.turn(2.0)
    assert handover.is_over and old.leaves_by == 2.0 + 1.0 + 90.0
    old.child.become(ChildState.ENDED)
    assert children.drain_timeout_s == 5.0


def test_a_gateway_is_replaced_once_a_model_whose_workers_died_has_one_again(
    children: Children,
) -> None:
    handover, worker = _prepared_handover(children)
    worker.child.become(ChildState.WAITING)
    handover.turn(1.0)
    worker.child.become(ChildState.STARTING)
    handover.turn(19.0)
    assert "prepares itself" in repr(handover), "its answers wait at the old gateway"
    assert min(handover.deadlines()) == 20.0
    worker.child.become(ChildState.READY)
    handover.turn(19.5)
    assert "tells its workers" in repr(handover)


@pytest.mark.parametrize(("state", "at"), [(ChildState.WAITING, 20.0), (ChildState.QUARANTINED, 1)])
def test_a_gateway_is_replaced_without_a_worker_that_does_not_come(
    children: Children, state: ChildState, at: float
) -> None:
    handover, worker = _prepared_handover(children)
    worker.child.become(state)
    handover.turn(at)
    assert "tells its workers" in repr(handover)


def _prepared_handover(children: Children) -> tuple[Handover, ChildWatch]:
    """Begin to replace a gateway whose only worker has served."""
    (old,) = children.gateways
    worker = children.add(Launch(name="w", argv=("w",), env={}, model="m"), due_at=0.0)
    for watch in (old, worker):
        watch.child.become(ChildState.STARTING)
        watch.child.become(ChildState.READY)
    worker.was_ready = True
    handover = Handover(children, old, NEW, 0.0)
    handover.new.child.become(ChildState.STARTING)
    handover.new.child.reports |= {"X_PREPARED": "1", "X_BOUND": "1"}
    return handover, worker
