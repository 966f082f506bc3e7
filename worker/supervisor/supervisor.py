"""`llamapool serve`: starts the gateways and the workers, watches them, restarts and ends them.

One synchronous loop over signals, the children's reports and their standard errors. Signal handlers
only wake it. It imports neither zmq nor llama_cpp, so that it starts at once and cannot crash in
them. It holds the listening sockets, so that connections wait while a crashed gateway restarts.
"""

import logging
import selectors
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path

from protocol.errors import EXIT_CONFIG, EXIT_ERROR, EXIT_UNAVAILABLE
from protocol.process.listening import Listeners
from protocol.process.notify import Notifier
from worker.supervisor.children.children import Children
from worker.supervisor.children.launch import Launch
from worker.supervisor.children.managed_child import ChildState
from worker.supervisor.children.restart_policy import RestartPolicy
from worker.supervisor.children.watch import ChildWatch
from worker.supervisor.gateways import GatewayReload, Reread
from worker.supervisor.orders import Orders
from worker.supervisor.signal_queue import SignalQueue
from worker.supervisor.start_notice import StartNotice
from worker.supervisor.status import SupervisorStatus
from worker.supervisor.terminal import Console

logger = logging.getLogger("supervisor")

_DRAIN_GRACE_S = 10.0
"""Time after the gateways' own drain deadline at which they are killed."""
_STOP_S = 10.0
"""Seconds that workers have to end once no gateway runs, before they are killed."""
_STOOD_STILL_S = 2.0
"""Seconds beyond a deadline after which this process was stopped, and is not merely late."""
_LONGEST_WAIT_S = 3600.0
"""Longest wait for an event, in seconds. Source: `select` takes at most 24 days."""
_OUT = (ChildState.QUARANTINED, ChildState.GIVEN_UP)
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class SupervisorPhase(Enum):
    """Phase of the supervisor."""

    RUNNING = "running"
    DRAINING = "draining"
    """The gateways finish running tasks."""
    STOPPING = "stopping"
    """The gateways have ended; the workers leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSettings:
    """Settings of the supervisor."""

    launches: Sequence[Launch]
    runtime_dir: Path
    listeners: Listeners | None = None
    """The sockets that the gateways serve; this process closes them at the end."""
    notice: StartNotice = StartNotice()
    policy: RestartPolicy = RestartPolicy()
    orders: Orders
    """Carries out the orders of gateways and admins."""
    reread: Reread
    """Called at SIGHUP: the new gateways that replace those that run."""


class Supervisor:
    """Owns every process; `run` returns the exit code."""

    def __init__(self, settings: SupervisorSettings, console: Console, notifier: Notifier) -> None:
        self._settings = settings
        self._console = console
        self._notifier = notifier
        self._signals = SignalQueue(_SIGNALS)
        self._phase = SupervisorPhase.RUNNING
        self._phase_ends_at = 0.0
        self._exit_code = 0
        self._orders = settings.orders
        self._children = Children(
            settings.launches, settings.runtime_dir, console, notifier, self._policy_of
        )
        self._reload = GatewayReload(
            self._children, notifier, settings.reread, self._orders.workers.reread
        )
        self._status = SupervisorStatus(
            self._children, console, notifier, settings.notice, self._orders.workers.models
        )

    def run(self) -> int:
        """Serve until told to end; no child is left when this returns."""
        children, selector = self._children, self._children.selector
        self._status.begin(time.monotonic())
        try:
            with selector, self._signals.attached(selector):
                now = time.monotonic()
                self._orders.open(children, now)
                self._turn(now)
                while not self._is_over():  # true right after the turn that reaped the last child
                    now = self._wait(selector, now)
                    self._turn(now)
        finally:
            children.kill(children.watches)  # none is left after a normal end
            self._close_listeners()
            self._orders.close()
            self._notifier.close()
        logger.info("ended", extra={"exit_code": self._exit_code})
        return self._exit_code

    def _wait(self, selector: selectors.BaseSelector, turned_at: float) -> float:
        """Read what comes until the next deadline; return the time of the next turn.

        A whole container may be paused, whose time goes on: nobody has then been silent for long.
        """
        timeout_s = self._timeout_s(time.monotonic())
        if timeout_s is not None:
            timeout_s = min(timeout_s, _LONGEST_WAIT_S)
        for key, _ in selector.select(timeout_s):
            self._children.guarded(key.data)
        now = time.monotonic()
        if timeout_s is not None and now - turned_at > timeout_s + _STOOD_STILL_S:
            self._children.wait_again(now)
        return now

    def _is_over(self) -> bool:
        return self._phase is SupervisorPhase.STOPPING and not any(
            w.child.is_alive for w in self._children.watches
        )

    def _handle_signals(self, now: float) -> None:
        for number in self._signals.take():
            if number is signal.SIGCHLD:
                continue  # every turn reaps ended children
            if number is signal.SIGHUP and not self._console.is_hung_up():
                logger.info("reloading", extra={"signal": number.name})
                self._reload.ask()
            elif self._phase is SupervisorPhase.RUNNING:
                logger.info("draining", extra={"signal": number.name})
                self._console.show("\nFinishing running requests; Ctrl-C again ends at once.\n")
                self._drain(now)
            else:
                logger.warning(
                    "ending at once",
                    extra={"signal": number.name, "action": "all processes are killed"},
                )
                self._exit_code = EXIT_ERROR
                self._phase = SupervisorPhase.STOPPING
                self._children.kill(self._children.watches)

    # ---- the turn -----------------------------------------------------------------------------

    def _turn(self, now: float) -> None:
        children = self._children
        self._handle_signals(now)
        children.reap(now, restarts=self._phase is SupervisorPhase.RUNNING)
        if self._phase is SupervisorPhase.RUNNING:
            children.guarded(partial(self._orders.turn, now))
            children.guarded(partial(self._reload.turn, now))
            children.start_due(now)
            children.kill_late(now)
            self._give_up_without_gateways(now)
            self._give_up_without_workers(now)
        else:
            self._keep_deadline(now)
        children.guarded(partial(self._orders.report_changes, now))
        phase, note = self._phase.value, self._reload.note
        children.guarded(partial(self._status.report_changes, phase, note, now))

    def _timeout_s(self, now: float) -> float | None:
        times = [self._phase_ends_at]
        if self._phase is SupervisorPhase.RUNNING:
            children, reload, orders = self._children, self._reload, self._orders
            times = [*children.deadlines(), *reload.deadlines(), *orders.workers.deadlines()]
        times += self._status.deadlines()
        return max(0.0, min(times) - now) if times else None

    def _policy_of(self, watch: ChildWatch) -> RestartPolicy:
        policy = replace(self._settings.policy, retries_configuration=watch.was_ready)
        if watch.child.launch.is_gateway:
            # Without any gateway no request can be served; another supervisor may help.
            is_only = len(self._children.gateways) == 1
            return replace(policy, quarantine_s=None) if is_only else policy
        if self._orders.workers.models is not None:
            # The client gets an error and may request the model again.
            policy = replace(policy, quarantine_s=None, retries_configuration=False)
            return policy if watch.was_ready else replace(policy, max_deaths=1)
        return policy

    def _give_up_without_gateways(self, now: float) -> None:
        gateways = self._children.gateways
        if all(watch.child.state in _OUT for watch in gateways):
            is_config = all(watch.exit_code == EXIT_CONFIG for watch in gateways)
            self._exit_code = EXIT_CONFIG if is_config else EXIT_ERROR
            self._stop(now)

    def _give_up_without_workers(self, now: float) -> None:
        if self._phase is not SupervisorPhase.RUNNING:  # the gateways were given up in this turn
            return
        if self._orders.workers.keeps_going:  # it is normal to have no worker
            return
        workers = self._children.workers
        if all(watch.child.state in _OUT for watch in workers):
            is_config = all(watch.exit_code == EXIT_CONFIG for watch in workers)
            if len(workers) > 1:  # for a single worker, the line before has the reason
                logger.error(
                    "no worker can start",
                    extra={"n_workers": len(workers), "action": "everything ends"},
                )
            self._exit_code = EXIT_CONFIG if is_config else EXIT_UNAVAILABLE
            self._drain(now)

    # ---- the end ------------------------------------------------------------------------------

    def _drain(self, now: float) -> None:
        self._notifier.stopping()
        self._phase = SupervisorPhase.DRAINING
        self._phase_ends_at = now + _DRAIN_GRACE_S + self._children.drain_timeout_s
        for watch in self._children.gateways:
            watch.leave()

    def _stop(self, now: float) -> None:
        self._phase = SupervisorPhase.STOPPING
        self._phase_ends_at = now + _STOP_S
        self._close_listeners()
        for watch in self._children.workers:
            watch.leave()

    def _close_listeners(self) -> None:
        """Refuse connections from now on, because no gateway would answer them."""
        if self._settings.listeners is not None:
            self._settings.listeners.close()

    def _keep_deadline(self, now: float) -> None:
        gateways = [watch for watch in self._children.gateways if watch.child.is_alive]
        if self._phase is SupervisorPhase.DRAINING and not gateways:
            self._stop(now)
        elif now >= self._phase_ends_at:
            late = [w for w in self._children.watches if w.child.is_alive and not w.is_killed]
            if self._phase is SupervisorPhase.DRAINING:
                late = gateways
            if late:
                self._exit_code = self._exit_code or EXIT_ERROR
                logger.error(
                    "not ended in time",
                    extra={
                        "children": [watch.child.launch.name for watch in late],
                        "action": "they are killed",
                    },
                )
            self._children.kill(late)
            self._phase_ends_at = now + _STOP_S
