"""Orders of gateways and admins to the supervisor, and its reports to them."""

import time
from collections.abc import Iterator, Sequence
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
from worker.supervisor.control import ControlPeer, ControlServer
from worker.supervisor.on_demand import OnDemand
from worker.supervisor.rollout.rollouts import Rollouts

_ON_DEMAND = "models are loaded on demand here: POST /models/unload and /models/load, or reload"
_PROGRESS_STEPS = 20


class Orders:
    """Owns the control channel, and reports to the gateways how the processes are.

    A subclass carries out the orders: `FixedWorkerOrders` or `OnDemandOrders`.
    """

    def __init__(self, control: ControlServer) -> None:
        self._control = control
        self._watches: Sequence[ChildWatch] = ()
        self._reported = FleetReport()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._control!r}>"

    @property
    def models(self) -> tuple[str, ...] | None:
        """Names of the models that are loaded on demand; None if the workers are fixed."""
        return None

    @property
    def keeps_going(self) -> bool:
        """Whether it is normal that no worker runs."""
        return False

    def open(self, children: Children, now: float) -> None:
        """Listen for orders; raises `ConfigError`."""
        self._watches = children.watches
        self._control.open(children.selector, self._greeting)

    def close(self) -> None:
        """Close the control channel."""
        self._control.close()

    def deadlines(self) -> Iterator[float]:
        """Yield the times at which `turn` must be called."""
        return iter(())

    def reread(self, now: float) -> None:
        """Read the configuration again after SIGHUP, and replace what has changed."""

    def turn(self, now: float) -> None:
        """Carry out new orders, and advance those in progress."""
        for line, peer in self._control.take():
            if isinstance(line, Subscribe):
                self._control.answer(peer, self._report(now))
            else:
                self._carry_out(line, peer, now)

    def report_changes(self, now: float) -> None:
        """Report changed states to the gateways."""
        report = self._report(now)
        if _steady(report) != _steady(self._reported):
            self._reported = report
            self._control.publish(report)

    def _carry_out(self, line: Line, peer: ControlPeer, now: float) -> None:
        """Carry out an order; a line that this supervisor does not expect is ignored."""

    def _greeting(self) -> Iterator[Line]:
        """Yield the first lines of a connection."""
        return iter(())

    def _report(self, now: float) -> FleetReport:
        return FleetReport(
            processes=tuple(_process(one, self._drained(), now) for one in self._watches),
            rollout=self._rollout_report(now),
        )

    def _drained(self) -> frozenset[str]:
        """Return the names of the processes that an admin has taken out of service."""
        return frozenset()

    def _rollout_report(self, now: float) -> RolloutReport:
        return RolloutReport()


class FixedWorkerOrders(Orders):
    """Orders to the workers of a configuration: rolling changes, draining and undraining."""

    def __init__(self, control: ControlServer, rollouts: Rollouts) -> None:
        super().__init__(control)
        self._rollouts = rollouts

    @property
    def keeps_going(self) -> bool:
        """Whether the pool may be without a worker for a while."""
        return self._rollouts.keeps_going

    def open(self, children: Children, now: float) -> None:
        """Listen for orders, and take over the workers; raises `ConfigError`."""
        super().open(children, now)
        self._rollouts.open(children)

    def close(self) -> None:
        """Close the control channel and the sockets of a rolling change."""
        super().close()
        self._rollouts.close()

    def deadlines(self) -> Iterator[float]:
        """Yield the times at which `turn` must be called."""
        return self._rollouts.deadlines()

    def reread(self, now: float) -> None:
        """Read the configuration again, and change the workers that it changes."""
        self._rollouts.reread(now)

    def turn(self, now: float) -> None:
        """Carry out new orders, and advance the rolling change."""
        super().turn(now)
        self._rollouts.turn(now)

    def _carry_out(self, line: Line, peer: ControlPeer, now: float) -> None:
        match line:
            case RolloutOrder():
                self._rollouts.begin(line, partial(self._reply, peer, line.id), now)
            case AbortOrder():
                self._reply(peer, line.id, self._rollouts.abort())
            case WorkerOrder():
                error, is_unknown = self._rollouts.order_worker(line, now)
                self.report_changes(now)
                self._control.answer(peer, Reply(id=line.id, error=error, is_unknown=is_unknown))
            case Answered():
                self._rollouts.add_answer(line)

    def _reply(self, peer: ControlPeer, number: int, error: str) -> None:
        self.report_changes(time.monotonic())  # the answer comes after the state that it refers to
        self._control.answer(peer, Reply(id=number, error=error))

    def _drained(self) -> frozenset[str]:
        return self._rollouts.drained

    def _rollout_report(self, now: float) -> RolloutReport:
        return self._rollouts.report(now)


class OnDemandOrders(Orders):
    """Orders to load and unload models."""

    def __init__(self, control: ControlServer, on_demand: OnDemand) -> None:
        super().__init__(control)
        self._on_demand = on_demand

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models that can be loaded."""
        return self._on_demand.models

    @property
    def keeps_going(self) -> bool:
        """Whether it is normal that no worker runs: it always is."""
        return True

    def open(self, children: Children, now: float) -> None:
        """Listen for orders, and load the models of the start; raises `ConfigError`."""
        super().open(children, now)
        self._on_demand.open(children.watches, children.selector, now)

    def close(self) -> None:
        """Close the control channel, and cancel all downloads."""
        super().close()
        self._on_demand.close()

    def deadlines(self) -> Iterator[float]:
        """Yield the times at which `turn` must be called."""
        return self._on_demand.deadlines()

    def reread(self, now: float) -> None:
        """Look for models again."""
        self._on_demand.reread()

    def turn(self, now: float) -> None:
        """Carry out new orders, and unload what no gateway needs."""
        super().turn(now)
        self._on_demand.turn(now)

    def report_changes(self, now: float) -> None:
        """Report changed states of models and processes to the gateways."""
        self._on_demand.report_changes()
        super().report_changes(now)

    def _carry_out(self, line: Line, peer: ControlPeer, now: float) -> None:
        match line:
            case Order():
                self._on_demand.carry_out(line, peer, now)
            case WorkerOrder() | RolloutOrder() | AbortOrder():
                self.report_changes(now)
                self._control.answer(peer, Reply(id=line.id, error=_ON_DEMAND))

    def _greeting(self) -> Iterator[Line]:
        return self._on_demand.greeting()


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
