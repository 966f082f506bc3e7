"""Orders of gateways and admins to the supervisor, and its reports to them."""

import time
from dataclasses import replace
from functools import partial

from protocol.process.control import FleetReport, ProcessReport, Reply, Subscribe
from worker.supervisor.children.children import Children
from worker.supervisor.children.managed_child import ChildState
from worker.supervisor.children.watch import DOWN, RESTING, ChildWatch
from worker.supervisor.control import ControlPeer, ControlServer
from worker.supervisor.on_demand import OnDemand
from worker.supervisor.rollout.rollouts import Rollouts

_PROGRESS_STEPS = 20
"""Steps in which a load is reported."""


class Orders:
    """Owns the control channel: passes orders on, and reports how the processes are.

    `Rollouts` carries out the orders to the workers of a configuration, `OnDemand` those to load
    and unload models.
    """

    def __init__(self, control: ControlServer, workers: Rollouts | OnDemand) -> None:
        self._control = control
        self.workers = workers
        self._children: Children | None = None
        self._reported = FleetReport()

    def open(self, children: Children, now: float) -> None:
        """Listen for orders, and take over the workers; raises `ConfigError`."""
        self._children = children
        self._control.open(children.selector, self.workers.greeting)
        self.workers.open(children, now)

    def close(self) -> None:
        """Close the control channel, and end what is in progress."""
        self._control.close()
        self.workers.close()

    def turn(self, now: float) -> None:
        """Carry out new orders, and advance those in progress."""
        for line, peer in self._control.take():
            if isinstance(line, Subscribe):
                self._control.answer(peer, self._report(now))
            else:
                self.workers.carry_out(line, peer, partial(self._answer, peer), now)
        self.workers.turn(now)

    def report_changes(self, now: float) -> None:
        """Report changed states to the gateways."""
        self.workers.report_changes()
        report = self._report(now)
        if _steady(report) != _steady(self._reported):
            self._reported = report
            self._control.publish(report)

    def _answer(self, peer: ControlPeer, reply: Reply) -> None:
        self.report_changes(time.monotonic())  # the answer comes after the state that it refers to
        self._control.answer(peer, reply)

    def _report(self, now: float) -> FleetReport:
        assert self._children is not None
        drained = self.workers.drained
        return FleetReport(
            processes=tuple(_process(watch, drained, now) for watch in self._children.watches),
            rollout=self.workers.report(now),
            n_gateway_restarts=self._children.n_gateway_restarts,
        )


def _process(watch: ChildWatch, drained: frozenset[str], now: float) -> ProcessReport:
    child = watch.child
    state = child.state.value
    if watch.leaves_by is not None and child.is_alive:
        state = "leaving"
    elif child.state is ChildState.ENDED:
        state = "drained" if child.launch.name in drained else "ended"
    is_resting = child.state in RESTING
    return ProcessReport(
        name=child.launch.name,
        model=child.launch.model,
        state=state,
        pid=child.pid,
        n_restarts=watch.n_restarts,
        progress=round(child.progress * _PROGRESS_STEPS) / _PROGRESS_STEPS,
        retry_s=round(max(0.0, watch.due_at - now), 1) if is_resting else 0.0,
        why=watch.cause() if child.state in DOWN and watch.n_starts else "",
    )


def _steady(report: FleetReport) -> FleetReport:
    """Return a report without the fields that change with time alone."""
    return replace(
        report,
        processes=tuple(replace(process, retry_s=0.0) for process in report.processes),
        rollout=replace(report.rollout, seconds=0.0),
    )
