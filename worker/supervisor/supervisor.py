"""`llamapool serve`: starts the gateway and the workers, watches them, restarts and ends them.

One synchronous loop over signals, the children's reports and their standard errors. Signal handlers
only wake it. It imports neither zmq nor llama_cpp, so that it starts at once and cannot crash in
them.
"""

import logging
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path

from protocol.process.notify import Notifier
from worker.supervisor.child_log import log_death, log_stderr
from worker.supervisor.launch import Launch
from worker.supervisor.managed_child import ChildState, ManagedChild, Output
from worker.supervisor.on_demand import OnDemand
from worker.supervisor.restart_policy import (
    EXIT_CONFIG,
    EXIT_ERROR,
    EXIT_NO_WORKER,
    Policy,
    judge,
)
from worker.supervisor.start_notice import StartNotice
from worker.supervisor.terminal import Bar, Console
from worker.supervisor.wake_queue import SignalQueue
from worker.supervisor.watch import RESTING, ChildWatch, fraction

logger = logging.getLogger("supervisor")

_DRAIN_GRACE_S = 10.0
"""Time after the gateway's own drain deadline at which it is killed."""
_STOP_S = 10.0
_OUT = (ChildState.QUARANTINED, ChildState.GIVEN_UP)
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class SupervisorPhase(Enum):
    """Phase of the supervisor."""

    RUNNING = "running"
    DRAINING = "draining"
    """The gateway finishes running tasks."""
    STOPPING = "stopping"
    """The gateway has ended; the workers leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the supervisor."""

    launches: Sequence[Launch]
    runtime_dir: Path
    drain_timeout_s: float = 600.0
    notice: StartNotice = StartNotice()
    policy: Policy = Policy()
    on_demand: OnDemand | None = None
    """Models that are loaded by order of the gateway."""


class Supervisor:
    """Owns every process; `run` returns the exit code."""

    def __init__(self, settings: Settings, console: Console, notifier: Notifier) -> None:
        self._settings = settings
        self._console = console
        self._notifier = notifier
        self._selector = selectors.DefaultSelector()
        self._signals = SignalQueue(_SIGNALS)
        self._phase = SupervisorPhase.RUNNING
        self._phase_ends_at = 0.0
        self._exit_code = 0
        self._has_served = False
        self._has_welcomed = False
        self._started_at = 0.0
        self._beat_at = 0.0
        self._watches = [
            ChildWatch(ManagedChild(launch, settings.runtime_dir / f"notify-{index}.sock"))
            for index, launch in enumerate(settings.launches)
        ]
        self._gateway = self._watches[0]
        self._on_demand = settings.on_demand

    @property
    def _workers(self) -> Sequence[ChildWatch]:
        return self._watches[1:]

    def run(self) -> int:
        """Serve until told to end; no child is left when this returns."""
        self._started_at = self._beat_at = time.monotonic()
        try:
            with self._selector, self._signals.attached(self._selector):
                if self._on_demand:
                    self._on_demand.open(self._selector, self._watches, time.monotonic())
                self._turn(time.monotonic())
                while not self._is_over():  # true right after the turn that reaped the last child
                    for key, _ in self._selector.select(self._timeout_s(time.monotonic())):
                        self._guarded(key.data)
                    self._turn(time.monotonic())
        finally:
            self._kill_all()
            if self._on_demand:
                self._on_demand.close()
        logger.info("ended", extra={"exit_code": self._exit_code})
        return self._exit_code

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run an action of one child; an exception must not affect the others."""
        try:
            action()
        except Exception:
            logger.exception("unexpected exception", extra={"action": "all other processes go on"})

    def _is_over(self) -> bool:
        return self._phase is SupervisorPhase.STOPPING and not any(
            w.child.is_alive for w in self._watches
        )

    def _obey_signals(self, now: float) -> None:
        for number in self._signals.take():
            if number is signal.SIGCHLD:
                continue  # every turn reaps ended children
            if self._phase is SupervisorPhase.RUNNING:
                logger.info("draining", extra={"signal": number.name})
                self._console.tell("\nFinishing running requests; Ctrl-C again ends at once.\n")
                self._drain(now)
            else:
                logger.warning(
                    "ending at once",
                    extra={"signal": number.name, "action": "all processes are killed"},
                )
                self._exit_code = EXIT_ERROR
                self._phase = SupervisorPhase.STOPPING
                self._kill(self._watches)

    # ---- the turn -----------------------------------------------------------------------------

    def _turn(self, now: float) -> None:
        self._obey_signals(now)
        for watch in list(self._watches):
            self._guarded(partial(self._reap, watch, now))
        if self._phase is SupervisorPhase.RUNNING:
            if self._on_demand:
                self._guarded(partial(self._on_demand.obey, now))
                self._kill(self._on_demand.overdue(now))
            self._start_the_due(now)
            self._kill_the_silent(now)
            self._give_up_without_workers(now)
        else:
            self._keep_deadline(now)
        if self._on_demand:
            self._guarded(self._on_demand.tell)
        self._guarded(partial(self._tell, now))

    def _timeout_s(self, now: float) -> float | None:
        times = [w.due_at for w in self._watches if w.child.state in RESTING]
        times += [w.heard_at + w.child.launch.watchdog_s for w in self._watches if w.is_timed]
        if self._on_demand:
            times += self._on_demand.deadlines()
        if self._phase is not SupervisorPhase.RUNNING:
            times = [self._phase_ends_at]
        if self._notifier.watchdog_interval_s is not None:
            times.append(self._beat_at + self._notifier.watchdog_interval_s)
        return max(0.0, min(times) - now) if times else None

    def _start_the_due(self, now: float) -> None:
        for watch in self._watches:
            if watch.child.state in RESTING and watch.due_at <= now:
                self._start(watch, now)

    def _start(self, watch: ChildWatch, now: float) -> None:
        """Start a process; a failed start counts as a death."""
        child = watch.child
        child.become(ChildState.STARTING)
        watch.is_killed, watch.ready_at, watch.failure = False, 0.0, ""
        try:
            child.spawn()
        except (OSError, ValueError) as error:
            watch.failure = f"cannot be started: {error}"
            watch.exit_code = EXIT_ERROR
            self._judge(watch, now)
            return
        assert child.log is not None and child.stderr is not None
        hears = (
            partial(self._pass_on, child.log),
            partial(self._quote, child.launch.name, child.stderr),
            partial(self._hear, watch),
        )
        for fd, heard in zip(child.fds, hears, strict=True):
            self._selector.register(fd, selectors.EVENT_READ, heard)
        logger.debug("process started", extra={"child": child.launch.name, "pid": child.pid})

    def _pass_on(self, output: Output) -> None:
        self._console.lines(output.read())

    def _quote(self, name: str, output: Output) -> None:
        log_stderr(name, output.read())

    def _hear(self, watch: ChildWatch) -> None:
        child = watch.child
        for report in child.read_reports():
            child.url = report.get("X_URL", child.url)
            child.reason = report.get("X_REASON", child.reason)
            if "X_PROGRESS" in report:
                child.progress = fraction(report["X_PROGRESS"])
                self._notifier.send(EXTEND_TIMEOUT_USEC=60_000_000)
            if "WATCHDOG" in report:
                watch.heard_at = time.monotonic()
            if "READY" in report and child.state is ChildState.STARTING:
                child.become(ChildState.READY)
                watch.ready_at = watch.heard_at = time.monotonic()
                watch.was_ready = True
                logger.info("process ready", extra={"child": child.launch.name, "pid": child.pid})

    # ---- death --------------------------------------------------------------------------------

    def _reap(self, watch: ChildWatch, now: float) -> None:
        """Reap a child if it has ended, and decide what follows."""
        child = watch.child
        if not child.is_alive or (code := child.reap()) is None:
            return
        watch.exit_code = code
        for fd in child.fds:
            self._selector.unregister(fd)
        self._hear(watch)
        said, quoted = child.close()
        self._console.lines(said)
        log_stderr(child.launch.name, quoted)
        if self._phase is SupervisorPhase.RUNNING and watch.leaves_by is None:
            self._judge(watch, now)
        else:
            child.become(ChildState.ENDED)
            logger.debug("process ended", extra={"child": child.launch.name, "exit_code": code})

    def _judge(self, watch: ChildWatch, now: float) -> None:
        """Apply the restart policy to a death, and log it."""
        child = watch.child
        verdict = judge(
            watch.history,
            now=now,
            ready_s=now - watch.ready_at if watch.ready_at else 0.0,
            exit_code=watch.exit_code,
            policy=self._policy_for(watch),
        )
        watch.history = verdict.history
        log_death(watch, verdict)
        if verdict.delay_s is not None:
            child.become(ChildState.QUARANTINED if verdict.is_quarantine else ChildState.WAITING)
            watch.due_at = now + verdict.delay_s
            return
        child.become(ChildState.GIVEN_UP)
        if child.launch.is_gateway:
            self._exit_code = EXIT_CONFIG if watch.exit_code == EXIT_CONFIG else EXIT_ERROR
            self._stop(now)

    def _policy_for(self, watch: ChildWatch) -> Policy:
        policy = self._settings.policy
        if watch.child.launch.is_gateway:
            return replace(policy, quarantine_s=None)  # no request can be served without it
        if self._on_demand:
            # The client gets an error and may request the model again.
            policy = replace(policy, quarantine_s=None)
            return policy if watch.was_ready else replace(policy, max_deaths=1)
        return policy

    def _kill_the_silent(self, now: float) -> None:
        for watch in self._watches:
            limit = watch.child.launch.watchdog_s
            if watch.is_timed and now - watch.heard_at >= limit:
                logger.error(
                    "process makes no progress",
                    extra={
                        "child": watch.child.launch.name,
                        "silent_s": limit,
                        "action": "it is killed",
                    },
                )
                self._kill([watch])

    def _kill(self, watches: Sequence[ChildWatch]) -> None:
        for watch in watches:
            watch.is_killed = True
            watch.child.kill(signal.SIGKILL)

    def _give_up_without_workers(self, now: float) -> None:
        if self._phase is not SupervisorPhase.RUNNING:  # the gateway was given up in this turn
            return
        if self._on_demand:  # it is normal to have no worker
            return
        if all(watch.child.state in _OUT for watch in self._workers):
            is_config = all(watch.exit_code == EXIT_CONFIG for watch in self._workers)
            if len(self._workers) > 1:  # for a single worker the line before says it
                logger.error(
                    "no worker can start",
                    extra={"n_workers": len(self._workers), "action": "everything ends"},
                )
            self._exit_code = EXIT_CONFIG if is_config else EXIT_NO_WORKER
            self._drain(now)

    # ---- the end ------------------------------------------------------------------------------

    def _drain(self, now: float) -> None:
        self._notifier.stopping()
        self._phase = SupervisorPhase.DRAINING
        self._phase_ends_at = now + self._settings.drain_timeout_s + _DRAIN_GRACE_S
        self._gateway.leave()

    def _stop(self, now: float) -> None:
        self._phase = SupervisorPhase.STOPPING
        self._phase_ends_at = now + _STOP_S
        for watch in self._workers:
            watch.leave()

    def _keep_deadline(self, now: float) -> None:
        if self._phase is SupervisorPhase.DRAINING and not self._gateway.child.is_alive:
            self._stop(now)
        elif now >= self._phase_ends_at:
            late = [w for w in self._watches if w.child.is_alive and not w.is_killed]
            if self._phase is SupervisorPhase.DRAINING:
                late = [self._gateway]
            if late:
                self._exit_code = self._exit_code or EXIT_ERROR
                logger.error(
                    "not ended in time",
                    extra={
                        "children": [watch.child.launch.name for watch in late],
                        "action": "they are killed",
                    },
                )
            self._kill(late)
            self._phase_ends_at = now + _STOP_S

    def _kill_all(self) -> None:
        """Kill all children that still run; none do after a normal end."""
        for watch in self._watches:
            watch.child.kill(signal.SIGKILL)

    # ---- telling ------------------------------------------------------------------------------

    def _tell(self, now: float) -> None:
        starting = [w.child for w in self._workers if w.child.state is ChildState.STARTING]
        self._console.bars(Bar(child.launch.name, child.progress) for child in starting)
        n_ready = sum(watch.child.state is ChildState.READY for watch in self._workers)
        status = f"{self._phase.value}, {n_ready} of {len(self._workers)} workers ready"
        if not self._has_served and self._is_serving():
            self._has_served = True
            self._notifier.ready(status)
        is_settled = bool(self._on_demand) or not starting
        if self._has_served and not self._has_welcomed and is_settled:
            self._has_welcomed = True
            self._welcome(now, n_ready)
        interval_s = self._notifier.watchdog_interval_s
        if interval_s is not None and now >= self._beat_at + interval_s:
            # Stuck children were killed above, so reaching this line is progress.
            self._beat_at = now
            self._notifier.watchdog()
            self._notifier.status(status)

    def _is_serving(self) -> bool:
        if self._on_demand:
            return self._gateway.child.state is ChildState.READY
        models = {watch.child.launch.model for watch in self._workers}
        ready = {w.child.launch.model for w in self._workers if w.child.state is ChildState.READY}
        return self._gateway.child.state is ChildState.READY and ready == models

    def _welcome(self, now: float, n_ready: int) -> None:
        models = dict.fromkeys(watch.child.launch.model for watch in self._workers)
        notice = replace(
            self._settings.notice,
            url=self._gateway.child.url,
            models=self._on_demand.models if self._on_demand else tuple(models),
            n_workers=n_ready,
            seconds=now - self._started_at,
        )
        logger.info(
            "ready",
            extra={
                "url": notice.url,
                "models": notice.models,
                "n_workers": notice.n_workers,
                "start_s": notice.seconds,
            },
        )
        self._console.tell(str(notice))
