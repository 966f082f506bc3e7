"""Carries out orders of admins and SIGHUP: rolling changes, draining and undraining workers."""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from protocol.config.config import PoolConfig
from protocol.config.rollout_config import RolloutConfig
from protocol.errors import ConfigError
from protocol.process.control import (
    AbortOrder,
    Answered,
    Line,
    Reply,
    RolloutOrder,
    RolloutReport,
    RolloutState,
    WorkerOrder,
    WorkerVerb,
    only_one_serves,
)
from worker.supervisor.children.children import Children
from worker.supervisor.control import ControlPeer
from worker.supervisor.rollout.change import Change, RolloutLimits
from worker.supervisor.rollout.fleet import Fleet
from worker.supervisor.rollout.machine import Rollout
from worker.supervisor.rollout.plan import changes
from worker.supervisor.rollout.planner import ConfigSource, Planner, Reader, ReadPool

logger = logging.getLogger("supervisor")

Answer = Callable[[str], None]
"""Takes the reason why an order was refused; empty if it was carried out."""

_BUSY = "a rolling change is under way: `llamapool rollout --abort` ends it"


class Rollouts:
    """Orders to the workers of a configuration; at most one rolling change at a time."""

    models = None
    """No models are loaded on demand."""

    def __init__(self, fleet: Fleet, read: Reader, first: ConfigSource, pool: PoolConfig) -> None:
        self._fleet = fleet
        self._read = read
        self._in_force = first
        self._pool = pool
        self._planner = Planner()
        self._rollout: Rollout | None = None
        self._last = RolloutReport()
        self._step = ("", "")
        self._wanted = first
        self._n_started = 0
        self._now = 0.0
        self._rereads = False
        self._is_aborted = False
        """Whether the change that is being planned shall not begin."""

    def open(self, children: Children, now: float) -> None:
        """Take over the workers that run."""
        self._fleet.open(children)
        self._planner.open(children.selector)

    def close(self) -> None:
        """Close the sockets of this process."""
        self._planner.close()

    @property
    def drained(self) -> frozenset[str]:
        """Processes that an admin has taken out of service."""
        return frozenset(self._fleet.drained)

    @property
    def is_busy(self) -> bool:
        """Whether a rolling change runs or is being planned."""
        return self._rollout is not None or self._planner.is_busy

    @property
    def keeps_going(self) -> bool:
        """Whether the pool may be without a worker for a while."""
        return self.is_busy or bool(self._fleet.drained)

    def report(self, now: float) -> RolloutReport:
        """Return the report of the rolling change that runs, or of the last one."""
        return self._rollout.report(now) if self._rollout is not None else self._last

    def deadlines(self) -> Iterator[float]:
        """Yield the time at which `turn` must be called."""
        if self._rollout is not None and self._rollout.deadline is not None:
            yield self._rollout.deadline

    def greeting(self) -> Iterator[Line]:
        """Yield no first lines of a connection."""
        return iter(())

    def report_changes(self) -> None:
        """Do nothing: the states of the processes say it all."""

    # ---- orders -------------------------------------------------------------------------------

    def carry_out(
        self, line: Line, peer: ControlPeer, answer: Callable[[Reply], None], now: float
    ) -> None:
        """Carry out an order; any other line is ignored."""
        match line:
            case RolloutOrder():
                self.begin(line, lambda error: answer(Reply(id=line.id, error=error)), now)
            case AbortOrder():
                answer(Reply(id=line.id, error=self.abort()))
            case WorkerOrder():
                error, is_unknown = self.order_worker(line, now)
                answer(Reply(id=line.id, error=error, is_unknown=is_unknown))
            case Answered():
                self._fleet.questions.add_answer(line)

    def begin(self, order: RolloutOrder, answer: Answer, now: float) -> None:
        """Read the configuration and begin; `answer` is called after it was read."""
        if self.is_busy:
            answer(_BUSY)
            return
        wanted = ConfigSource(
            path=Path(order.config) if order.config else self._in_force.path,
            options={**self._in_force.options, **order.options},
        )
        self._now = now
        self._planner.begin(
            lambda: (wanted, self._read(wanted)), partial(self._planned, order, answer)
        )

    def reread(self, now: float) -> None:
        """Read the configuration again and change only what has changed, as SIGHUP asks."""
        if self.is_busy:
            self._rereads = True
            logger.info("configuration read later", extra={"cause": "a rolling change runs"})
            return
        self.begin(_REREAD, _log_refusal, now)

    def abort(self) -> str:
        """Roll the change back; return why that is not possible, or an empty text.

        One that is still being planned does not begin.
        """
        if self._rollout is not None:
            self._rollout.abort()
        elif self._planner.is_busy and not self._is_aborted:
            self._is_aborted = True
            self._n_started += 1
            self._last = RolloutReport(
                state=RolloutState.FAILED, number=self._n_started, why="aborted"
            )
        else:
            return "no rolling change is under way"
        return ""

    def order_worker(self, order: WorkerOrder, now: float) -> tuple[str, bool]:
        """Drain or undrain a worker; return an error, and whether there is no such worker."""
        name = self._fleet.find(order.worker)
        if not name:
            return f"no worker is named '{order.worker}'", True
        if self.is_busy:
            return _BUSY, False
        if order.verb is WorkerVerb.UNDRAIN:
            if name not in self._fleet.drained and not self._fleet.is_down(name):
                return f"worker '{name}' is not drained", False
            if not self._fleet.undrain(name, now):
                return f"worker '{name}' has not left yet", False
        elif name not in self._fleet.drained:
            model = self._fleet.workers[name].config.alias
            is_served = model in order.served_elsewhere or set(self._fleet.serving(model)) - {name}
            if not order.force and not is_served:
                return only_one_serves(name, model), False
            self._fleet.drain(name, now)
        logger.info(
            "order for a worker carried out", extra={"worker": name, "order": order.verb.value}
        )
        return "", False

    # ---- a rolling change ---------------------------------------------------------------------

    def _planned(
        self,
        order: RolloutOrder,
        answer: Answer,
        result: "tuple[ConfigSource, ReadPool] | ConfigError",
    ) -> None:
        was_aborted, self._is_aborted = self._is_aborted, False
        if was_aborted:
            self._refuse(answer, "the rolling change was aborted")
            return
        if isinstance(result, ConfigError):
            self._refuse(answer, str(result))
            return
        wanted, read = result
        self._fleet.keep_leaving({table.name for table in read.tables})
        found, coming = changes(
            self._fleet.running,
            list(zip(read.tables, read.pool.worker, strict=True)),
            only_changed=order.only_changed,
        )
        if order is _REREAD and not found:
            self._keep(wanted, read.pool)
            return
        try:
            found = self._fleet.plan(read.pool, found, coming)
        except OSError as error:
            self._refuse(answer, f"cannot write the new configuration: {error.strerror}")
            return
        self._wanted, self._pool = wanted, read.pool
        self._start(read.pool.rollout, order, found)
        answer("")

    def _refuse(self, answer: Answer, error: str) -> None:
        answer(error)
        self._read_later(self._now)

    def _keep(self, wanted: ConfigSource, pool: PoolConfig) -> None:
        """Take over a configuration that changes no worker; what happened last stays reported."""
        self._in_force = self._wanted = wanted
        self._pool = pool
        self._fleet.drain_timeout_s = pool.gateway.drain_timeout_s
        logger.info("no worker has changed")
        self._read_later(self._now)

    def _start(self, config: RolloutConfig, order: RolloutOrder, found: list[Change]) -> None:
        golden = (*config.golden, *order.golden)
        fleet = self._fleet
        fleet.surge = config.surge if order.surge == "auto" else order.surge
        fleet.drain_timeout_s = self._pool.gateway.drain_timeout_s
        fleet.prompts = [question.prompt for question in golden]
        fleet.n_predict = config.golden_tokens
        limits = RolloutLimits(
            start_s=config.start_s, probation_s=config.probation_s, golden=golden
        )
        self._n_started += 1
        self._rollout = Rollout(self._n_started, found, limits, self._now)
        logger.info("rolling change began", extra={"workers": [change.title for change in found]})

    def turn(self, now: float) -> None:
        """Advance what is in progress."""
        self._now = now
        self._planner.turn()
        self._fleet.sweep()
        if self._rollout is None:
            return
        self._fleet.questions.send()
        self._fleet.perform(self._rollout.advance(self._fleet, now), now)
        report = self._rollout.report(now)
        if (report.worker, report.step) != self._step and report.step:
            self._step = (report.worker, report.step)
            logger.info("rolling change", extra={"worker": report.worker, "action": report.step})
        if self._rollout.is_over:
            self._end(report, now)

    def _end(self, report: RolloutReport, now: float) -> None:
        self._rollout, self._last = None, report
        self._fleet.questions.clear()
        self._fleet.forget(is_done=report.state is RolloutState.DONE)
        if report.state is RolloutState.DONE:
            self._in_force = self._wanted
            logger.info(
                "rolling change done",
                extra={"duration_s": report.seconds, "n_workers": report.n_done},
            )
        else:
            logger.error(
                "rolling change failed",
                extra={
                    "duration_s": report.seconds,
                    "cause": report.why,
                    "action": "the workers are as before",
                },
            )
        self._read_later(now)

    def _read_later(self, now: float) -> None:
        """Read the configuration again if that was asked for meanwhile."""
        if self._rereads:
            self._rereads = False
            self.reread(now)


_REREAD = RolloutOrder(id=0, only_changed=True)


def _log_refusal(error: str) -> None:
    if error:
        logger.error(
            "configuration of the workers not read again",
            extra={"cause": error, "action": "the workers stay as they were"},
        )
