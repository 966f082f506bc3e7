"""Starts, reads, reaps and kills all supervised processes.

It depends neither on the purpose of a process nor on the phase of the supervisor.
"""

import logging
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from protocol.errors import EXIT_ERROR, EXIT_OK
from protocol.process.control import AWAITED_VARIABLE
from protocol.process.notify import Notifier
from worker.supervisor.children.child_log import log_death, log_stderr
from worker.supervisor.children.launch import Launch
from worker.supervisor.children.managed_child import ChildState, ManagedChild, Output
from worker.supervisor.children.restart_policy import RestartPolicy, judge
from worker.supervisor.children.watch import RESTING, ChildWatch, fraction
from worker.supervisor.terminal import Console

logger = logging.getLogger("supervisor")


class Children:
    """The watches of all processes; others may add watches to the list and remove ended ones."""

    def __init__(
        self,
        launches: Sequence[Launch],
        folder: Path,
        console: Console,
        notifier: Notifier,
        policy_of: Callable[[ChildWatch], RestartPolicy],
    ) -> None:
        self.selector = selectors.DefaultSelector()
        self.watches: list[ChildWatch] = []
        self._folder = folder
        self._console = console
        self._notifier = notifier
        self._policy_of = policy_of
        self._n_made = 0
        self.n_gateway_restarts = 0
        """How often gateways died and were started again."""
        for launch in launches:
            self.add(launch)

    @property
    def gateways(self) -> list[ChildWatch]:
        """The gateways; while one is reloaded, also its successor."""
        return [watch for watch in self.watches if watch.child.launch.is_gateway]

    @property
    def workers(self) -> list[ChildWatch]:
        """The workers."""
        return [watch for watch in self.watches if not watch.child.launch.is_gateway]

    def add(self, launch: Launch, *, due_at: float = 0.0) -> ChildWatch:
        """Add a process, which starts at `due_at` of the monotonic clock."""
        path = self._folder / f"notify-{self._n_made}.sock"
        self._n_made += 1
        watch = ChildWatch(ManagedChild(launch, path), due_at=due_at)
        self.watches.append(watch)
        return watch

    def guarded(self, action: Callable[[], None]) -> None:
        """Run an action of one child; an exception must not affect the others."""
        try:
            action()
        except Exception:
            logger.exception("unexpected exception", extra={"action": "all other processes go on"})

    def deadlines(self) -> Iterator[float]:
        """Yield the times at which a process must be started or killed."""
        for watch in self.watches:
            if watch.child.state in RESTING:
                yield watch.due_at
            elif watch.leaves_by is not None and not watch.is_killed:
                yield watch.leaves_by
            if watch.is_timed:
                yield watch.watchdog_at + watch.child.launch.watchdog_s

    # ---- start --------------------------------------------------------------------------------

    def start_due(self, now: float) -> None:
        """Start the processes whose time has come."""
        for watch in self.watches:
            if watch.child.state in RESTING and watch.due_at <= now:
                self._start(watch, now)

    def _start(self, watch: ChildWatch, now: float) -> None:
        """Start a process; a failed start counts as a death."""
        child = watch.child
        child.become(ChildState.STARTING)
        watch.is_killed, watch.ready_at, watch.failure = False, 0.0, ""
        watch.n_starts += 1
        if child.launch.is_gateway and watch.n_restarts:
            self.n_gateway_restarts += 1
        try:
            child.spawn(self._env_of(watch))
        except (OSError, ValueError) as error:
            watch.failure = f"cannot be started: {error}"
            watch.exit_code = EXIT_ERROR
            if watch.is_trial:
                child.become(ChildState.ENDED)
            else:
                self._judge(watch, now)
            return
        assert child.log is not None and child.stderr is not None
        readers = (
            partial(self._pass_on, child.log),
            partial(self._log_stderr, child, child.stderr),
            partial(self._read_reports, watch),
        )
        for fd, read in zip(child.fds, readers, strict=True):
            self.selector.register(fd, selectors.EVENT_READ, read)
        logger.debug("process started", extra={"child": child.launch.name, "pid": child.pid})

    @property
    def n_ready_workers(self) -> int:
        """Number of workers that can serve; a gateway that has just started waits for them."""
        return sum(worker.child.state is ChildState.READY for worker in self.workers)

    @property
    def drain_timeout_s(self) -> float:
        """Seconds that the tasks of all gateways have to finish."""
        gateways = (watch.child for watch in self.gateways)
        running = (child for child in gateways if child.state is not ChildState.ENDED)
        return max((child.launch.drain_timeout_s for child in running), default=0.0)

    @property
    def is_model_away(self) -> bool:
        """Whether all workers of a model have died, and one that has served starts again soon."""
        away = (ChildState.WAITING, ChildState.STARTING)
        ready = {w.child.launch.model for w in self.workers if w.child.state is ChildState.READY}
        coming = (w for w in self.workers if w.was_ready and w.child.state in away)
        return any(worker.child.launch.model not in ready for worker in coming)

    def _env_of(self, watch: ChildWatch) -> dict[str, str]:
        """Return the number of workers that a restarted gateway awaits before it serves."""
        if not (watch.child.launch.is_gateway and watch.was_ready):
            return {}
        return {AWAITED_VARIABLE: str(self.n_ready_workers)}

    def _pass_on(self, output: Output) -> None:
        self._console.lines(output.read())
        self._drop_ended(output)

    def _log_stderr(self, child: ManagedChild, output: Output) -> None:
        log_stderr(child, output.read())
        self._drop_ended(output)

    def _drop_ended(self, output: Output) -> None:
        """Read a pipe no longer that has ended: it would stay readable until the process is."""
        if output.has_ended:
            self.selector.unregister(output.fd)

    def _read_reports(self, watch: ChildWatch) -> None:
        child = watch.child
        for report in child.read_reports():
            child.reports.update(report)
            child.url = report.get("X_URL", child.url)
            child.reason = report.get("X_REASON", child.reason)
            if "X_PROGRESS" in report:
                child.progress = fraction(report["X_PROGRESS"])
                self._notifier.send(EXTEND_TIMEOUT_USEC=60_000_000)
            if "WATCHDOG" in report:
                watch.watchdog_at = time.monotonic()
            if "READY" in report and child.state is ChildState.STARTING:
                child.become(ChildState.READY)
                watch.ready_at = watch.watchdog_at = time.monotonic()
                watch.was_ready = True
                logger.info("process ready", extra={"child": child.launch.name, "pid": child.pid})

    # ---- death --------------------------------------------------------------------------------

    def reap(self, now: float, *, restarts: bool) -> None:
        """Reap the processes that have ended, and decide when each starts again, if it does."""
        for watch in list(self.watches):
            self.guarded(partial(self._reap, watch, now, restarts))

    def _reap(self, watch: ChildWatch, now: float, restarts: bool) -> None:
        child = watch.child
        if not child.is_alive or (code := child.reap()) is None:
            return
        watch.exit_code = code
        for fd in child.fds:
            if fd in self.selector.get_map():
                self.selector.unregister(fd)
        self._read_reports(watch)
        log, stderr = child.close()
        self._console.lines(log)
        log_stderr(child, stderr)
        if restarts and watch.leaves_by is None and not watch.is_trial:
            self._judge(watch, now)
        else:
            child.become(ChildState.ENDED)
            logger.debug("process ended", extra={"child": child.launch.name, "exit_code": code})

    def _judge(self, watch: ChildWatch, now: float) -> None:
        """Apply the restart policy to a death, and log it."""
        verdict = judge(
            watch.history,
            now=now,
            ready_s=now - watch.ready_at if watch.ready_at else 0.0,
            exit_code=watch.exit_code or (EXIT_OK if watch.was_drained else EXIT_ERROR),
            policy=self._policy_of(watch),
        )
        watch.history = verdict.history
        log_death(watch, verdict)
        if verdict.delay_s is None:
            watch.child.become(ChildState.GIVEN_UP)
            return
        state = ChildState.QUARANTINED if verdict.is_quarantine else ChildState.WAITING
        watch.child.become(state)
        watch.due_at = now + verdict.delay_s

    def kill_late(self, now: float) -> None:
        """Kill the processes that report no progress, and those that did not leave in time."""
        for watch in self.watches:
            limit = watch.child.launch.watchdog_s
            if watch.is_timed and now - watch.watchdog_at >= limit:
                self._read_reports(watch)  # it may have been this process that stood still
            if watch.is_timed and now - watch.watchdog_at >= limit:
                logger.error(
                    "process makes no progress",
                    extra={
                        "child": watch.child.launch.name,
                        "silent_s": limit,
                        "action": "it is killed",
                    },
                )
                self.kill([watch])
            if watch.leaves_by is not None and not watch.is_killed and now >= watch.leaves_by:
                self.kill([watch])

    def wait_again(self, now: float) -> None:
        """Give all processes their whole time again, because they may have stood still."""
        for watch in self.watches:
            watch.watchdog_at = now

    def kill(self, watches: Sequence[ChildWatch]) -> None:
        """Send SIGKILL."""
        for watch in watches:
            watch.is_killed = True
            watch.child.kill(signal.SIGKILL)
