"""Orders to the workers of a configuration, without processes."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.config.config import PoolConfig, WorkerConfig
from protocol.errors import ConfigError
from protocol.process.control import RolloutOrder, RolloutState, WorkerOrder, WorkerVerb
from worker.host.placement import Host
from worker.supervisor.children.children import Children
from worker.supervisor.children.launch import Launch
from worker.supervisor.children.managed_child import ChildState
from worker.supervisor.control import ControlServer
from worker.supervisor.rollout.change import Change, StartWorker
from worker.supervisor.rollout.fleet import Fleet
from worker.supervisor.rollout.plan import planned
from worker.supervisor.rollout.planner import ConfigSource, ReadPool
from worker.supervisor.rollout.questions import Questions
from worker.supervisor.rollout.rollouts import Rollouts


class Readings:
    """Reads a configuration, broken if there is none; it takes until `may_end` is set."""

    def __init__(self) -> None:
        self.result: ReadPool | None = None
        self.may_end = threading.Event()
        self.n_begun = 0

    def __call__(self, source: ConfigSource) -> ReadPool:
        self.n_begun += 1
        self.may_end.wait(10.0)
        if self.result is None:
            raise ConfigError("it is broken")
        return self.result


class Rig:
    """Two workers whose processes are never started."""

    def __init__(self, folder: Path) -> None:
        unused: Any = None
        self.readings = Readings()
        self.control = ControlServer(folder / "control.sock")
        questions = Questions(self.control)
        self.fleet = Fleet(folder, {}, Host(cpus=(), n_online=1), questions)
        self.rollouts = Rollouts(self.fleet, self.readings, ConfigSource(), PoolConfig())
        launches = [Launch(name=name, argv=(), env={}, model="m") for name in ("v", "w")]
        self.children = Children(launches, folder, unused, unused, unused)
        for launch in launches:
            config = WorkerConfig(name=launch.name, alias="m", backend="fake")
            self.fleet.workers[launch.name] = planned(config, config)
        self.rollouts.open(self.children, 0.0)

    def turn_until_read(self) -> None:
        """Turn until no configuration is being read."""
        until = time.monotonic() + 10.0
        while self.rollouts.is_busy and time.monotonic() < until:
            self.rollouts.turn(0.0)
            time.sleep(0.001)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    one = Rig(tmp_path)
    with one.children.selector:
        yield one
    one.readings.may_end.set()
    one.rollouts.close()
    one.control.close()


def test_what_is_asked_while_a_broken_configuration_is_read_is_read_after_it(rig: Rig) -> None:
    rig.rollouts.reread(0.0)
    rig.rollouts.reread(0.0)
    rig.readings.may_end.set()
    rig.turn_until_read()
    assert rig.readings.n_begun == 2


def test_a_change_that_is_still_planned_can_be_aborted(rig: Rig) -> None:
    answers: list[str] = []
    config = WorkerConfig(name="v", alias="m", backend="fake")
    rig.readings.result = ReadPool(pool=PoolConfig(worker=(config,)), tables=(config,))
    rig.rollouts.begin(RolloutOrder(id=1), answers.append, 0.0)
    assert rig.rollouts.abort() == ""
    report = rig.rollouts.report(0.0)
    assert (report.state, report.number, report.why) == (RolloutState.FAILED, 1, "aborted")
    assert rig.rollouts.abort() == "no rolling change is under way"
    rig.readings.may_end.set()
    rig.turn_until_read()
    assert answers == ["the rolling change was aborted"]
    assert not rig.rollouts.is_busy
    assert rig.rollouts.report(0.0) == report


def test_an_abort_does_not_reach_the_next_change(rig: Rig) -> None:
    answers: list[str] = []
    rig.rollouts.begin(RolloutOrder(id=1), answers.append, 0.0)
    rig.rollouts.abort()
    rig.readings.may_end.set()
    rig.turn_until_read()
    rig.rollouts.begin(RolloutOrder(id=2), answers.append, 0.0)
    rig.turn_until_read()
    assert answers[1] == "it is broken"


def test_a_worker_that_was_given_up_can_be_drained_and_undrained(rig: Rig) -> None:
    v, w = rig.children.workers
    v.child.state, w.child.state = ChildState.READY, ChildState.GIVEN_UP
    order = WorkerOrder(id=1, worker="w", verb=WorkerVerb.DRAIN)
    assert rig.rollouts.order_worker(order, 0.0) == ("", False)
    rig.rollouts.turn(0.0)
    order = WorkerOrder(id=2, worker="w", verb=WorkerVerb.UNDRAIN)
    assert rig.rollouts.order_worker(order, 0.0) == ("", False)
    assert [watch.child.state for watch in rig.children.workers] == [
        ChildState.READY,
        ChildState.WAITING,
    ]
    assert not rig.rollouts.drained


@pytest.mark.parametrize("state", [ChildState.WAITING, ChildState.QUARANTINED, ChildState.GIVEN_UP])
def test_a_worker_that_is_down_is_started_at_once(rig: Rig, state: ChildState) -> None:
    v, w = rig.children.workers
    v.child.state, w.child.state = ChildState.READY, state
    w.due_at, w.n_starts = 600.0, 5
    order = WorkerOrder(id=1, worker="w", verb=WorkerVerb.UNDRAIN)
    assert rig.rollouts.order_worker(order, 1.0) == ("", False)
    _, again = rig.children.workers
    assert (again.child.state, again.due_at, again.n_starts) == (ChildState.WAITING, 1.0, 0)
    order = WorkerOrder(id=2, worker="v", verb=WorkerVerb.UNDRAIN)
    assert rig.rollouts.order_worker(order, 1.0) == ("worker 'v' is not drained", False)


def test_the_only_worker_of_a_model_is_drained_if_another_host_serves_it(rig: Rig) -> None:
    v, w = rig.children.workers
    v.child.state = w.child.state = ChildState.READY
    model = rig.fleet.workers["w"].config.alias
    rig.fleet.drain("v", 0.0)
    order = WorkerOrder(id=1, worker="w", verb=WorkerVerb.DRAIN)
    error, is_unknown = rig.rollouts.order_worker(order, 0.0)
    assert error.startswith(f"'w' is the only worker of '{model}'")
    assert not is_unknown
    order = WorkerOrder(id=2, worker="w", verb=WorkerVerb.DRAIN, served_elsewhere=(model,))
    assert rig.rollouts.order_worker(order, 0.0) == ("", False)


@pytest.mark.parametrize("has_left", [True, False])
def test_a_drained_worker_that_is_removed_does_not_come_back(rig: Rig, *, has_left: bool) -> None:
    v, w = rig.children.workers
    v.child.state, w.child.state = ChildState.READY, ChildState.READY
    rig.fleet.drain("w", 0.0)
    if has_left:
        w.child.state = ChildState.ENDED
    kept = rig.fleet.workers["v"].table
    rig.readings.result = ReadPool(pool=PoolConfig(worker=(kept,)), tables=(kept,))
    rig.readings.may_end.set()
    rig.rollouts.reread(0.0)
    rig.turn_until_read()
    order = WorkerOrder(id=1, worker="w", verb=WorkerVerb.UNDRAIN)
    assert rig.rollouts.order_worker(order, 0.0) == ("worker 'w' is not drained", False)
    w.child.state = ChildState.ENDED
    rig.rollouts.turn(0.0)
    assert rig.children.workers == [v]


def test_a_removed_worker_that_is_named_again_before_it_left_is_drained(rig: Rig) -> None:
    v, w = rig.children.workers
    v.child.state, w.child.state = ChildState.READY, ChildState.READY
    both = tuple(rig.fleet.workers[name].table for name in ("v", "w"))
    rig.fleet.drain("w", 0.0)
    rig.readings.may_end.set()
    for tables in (both[:1], both):
        rig.readings.result = ReadPool(pool=PoolConfig(worker=tables), tables=tables)
        rig.rollouts.reread(0.0)
        rig.turn_until_read()
    w.child.state = ChildState.ENDED
    rig.rollouts.turn(0.0)
    order = WorkerOrder(id=1, worker="w", verb=WorkerVerb.UNDRAIN)
    assert rig.rollouts.order_worker(order, 0.0) == ("", False)
    assert [watch.child.launch.name for watch in rig.children.workers] == ["v", "w"]


def test_only_configurations_that_a_worker_reads_are_kept(rig: Rig, tmp_path: Path) -> None:
    config = WorkerConfig(name="x", alias="m", backend="fake")
    for _ in range(3):
        rig.fleet.plan(PoolConfig(), [], {"x": planned(config, config)})
    rig.fleet.perform([StartWorker(Change(model="m", new="x"), is_held=False)], 0.0)
    rig.fleet.forget(is_done=True)
    assert [path.name for path in tmp_path.glob("workers-*.json")] == ["workers-3.json"]
    rig.fleet.drain("x", 0.0)
    rig.fleet.plan(PoolConfig(), [], {})
    rig.fleet.forget(is_done=False)
    assert [path.name for path in tmp_path.glob("workers-*.json")] == ["workers-3.json"]
