"""Orders of gateways and admins to the supervisor, and its reports to them."""

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from protocol.process.control import (
    AbortOrder,
    Answered,
    FleetReport,
    Line,
    Order,
    ProcessReport,
    Reply,
    RolloutOrder,
    RolloutReport,
    Subscribe,
    WorkerOrder,
)
from worker.supervisor.children.children import Children
from worker.supervisor.children.managed_child import ChildState
from worker.supervisor.children.watch import RESTING, ChildWatch
from worker.supervisor.control import ControlOrder, ControlPeer, ControlServer
from worker.supervisor.on_demand import OnDemand
from worker.supervisor.rollout.rollouts import Rollouts

logger = logging.getLogger("supervisor")

_ON_DEMAND = "models are loaded on demand here: POST /models/unload and /models/load, or reload"
_PROGRESS_STEPS = 20


class Orders:
    """Owns the control channel, and passes each line to the object that carries it out."""

    def __init__(
        self,
        control: ControlServer,
        *,
        rollouts: Rollouts | None = None,
        on_demand: OnDemand | None = None,
    ) -> None:
        """`rollouts` is for a fixed set of workers, `on_demand` for models loaded on demand."""
        self._control = control
        self._rollouts = rollouts
        self.on_demand = on_demand
        self._children: Children | None = None
        self._reported = FleetReport()

    def __repr__(self) -> str:
        return f"<Orders {self._control!r} {self._rollouts!r}>"

    def open(self, children: Children, now: float) -> None:
        """Listen for orders; raises `ConfigError`."""
        self._children = children
        self._control.open(children.selector, self._greeting)
        if self.on_demand is not None:
            self.on_demand.open(children.watches, children.selector, now)
        if self._rollouts is not None:
            self._rollouts.open(children)

    def close(self) -> None:
        """Close the control channel."""
        self._control.close()
        if self.on_demand is not None:
            self.on_demand.close()
        if self._rollouts is not None:
            self._rollouts.close()

    @property
    def models(self) -> tuple[str, ...] | None:
        """Names of the models that are loaded on demand; None if the workers are fixed."""
        return self.on_demand.models if self.on_demand is not None else None

    @property
    def keeps_going(self) -> bool:
        """Whether it is normal that no worker runs."""
        return self.on_demand is not None or (
            self._rollouts is not None and self._rollouts.keeps_going
        )

    def deadlines(self) -> Iterator[float]:
        """Yield the times at which `turn` must be called."""
        if self._rollouts is not None:
            yield from self._rollouts.deadlines()
        if self.on_demand is not None:
            yield from self.on_demand.deadlines()

    def reread(self, now: float) -> None:
        """Read the configuration again after SIGHUP, and replace what has changed."""
        if self._rollouts is not None:
            self._rollouts.reread(now)
        elif self.on_demand is not None:
            self.on_demand.reread()

    def turn(self, now: float) -> None:
        """Carry out new orders, and advance those in progress."""
        for order in self._control.take():
            self._carry_out(order, now)
        if self._rollouts is not None:
            self._rollouts.turn(now)
        if self.on_demand is not None:
            self.on_demand.turn(now)

    def _carry_out(self, order: ControlOrder, now: float) -> None:
        line, peer = order
        match line:
            case Subscribe():
                self._control.answer(peer, self._report(now))
            case Order() if self.on_demand is not None:
                self.on_demand.carry_out(line, peer, now)
            case WorkerOrder() | RolloutOrder() | AbortOrder():
                self._carry_out_admins(line, peer, now)
            case Answered() if self._rollouts is not None:
                self._rollouts.add_answer(line)

    def _carry_out_admins(
        self, line: WorkerOrder | RolloutOrder | AbortOrder, peer: ControlPeer, now: float
    ) -> None:
        if self._rollouts is None:
            self._reply(peer, line.id, _ON_DEMAND)
            return
        match line:
            case RolloutOrder():
                self._rollouts.begin(line, partial(self._reply, peer, line.id), now)
            case AbortOrder():
                self._reply(peer, line.id, self._rollouts.abort())
            case WorkerOrder():
                error, is_unknown = self._rollouts.order_worker(line, now)
                self.report_changes(now)
                self._control.answer(peer, Reply(id=line.id, error=error, is_unknown=is_unknown))

    def _reply(self, peer: ControlPeer, number: int, error: str) -> None:
        self.report_changes(time.monotonic())  # the answer comes after the state that it refers to
        self._control.answer(peer, Reply(id=number, error=error))

    def report_changes(self, now: float) -> None:
        """Report changed states to the gateways."""
        if self.on_demand is not None:
            self.on_demand.report_changes()
        report = self._report(now)
        if _steady(report) != _steady(self._reported):
            self._reported = report
            self._control.publish(report)

    def _greeting(self) -> Iterator[Line]:
        if self.on_demand is not None:
            yield from self.on_demand.greeting()

    def _report(self, now: float) -> FleetReport:
        watches = self._children.watches if self._children is not None else []
        drained = self._rollouts.drained if self._rollouts is not None else frozenset()
        return FleetReport(
            processes=tuple(_process(watch, drained, now) for watch in watches),
            rollout=self._rollouts.report(now) if self._rollouts else RolloutReport(),
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
        why=watch.cause() if is_resting and watch.n_starts else "",
    )


def _steady(report: FleetReport) -> FleetReport:
    """Return a report without the fields that change with time alone."""
    return replace(
        report,
        processes=tuple(replace(one, retry_s=0.0) for one in report.processes),
        rollout=replace(report.rollout, seconds=0.0),
    )
