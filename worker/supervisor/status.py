"""Shows the state of the pool: progress bars, the state for systemd, and the start notice."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from protocol.process.notify import Notifier
from worker.supervisor.children.children import Children
from worker.supervisor.children.managed_child import ChildState
from worker.supervisor.children.watch import ChildWatch
from worker.supervisor.start_notice import StartNotice
from worker.supervisor.terminal import Bar, Console

logger = logging.getLogger("supervisor")

_FLUSH_S = 1.0
"""Time between two tries to send systemd what its socket had no room for."""


class SupervisorStatus:
    """Reports changes of the state at every turn, and once that the pool serves."""

    def __init__(
        self,
        children: Children,
        console: Console,
        notifier: Notifier,
        notice: StartNotice,
        on_demand: Sequence[str] | None,
    ) -> None:
        self._children = children
        self._console = console
        self._notifier = notifier
        self._notice = notice
        self._on_demand = on_demand
        """Names of the models that are loaded on demand; None if all are loaded at the start."""
        self._has_served = False
        self._has_welcomed = False
        self._started_at = 0.0
        self._watchdog_at = 0.0
        self._flushed_at = 0.0
        self._reported = ""

    def begin(self, now: float) -> None:
        """Set the time of the start."""
        self._started_at = self._watchdog_at = now

    def deadlines(self) -> Iterator[float]:
        """Yield the times at which systemd must hear of progress, or is sent what it missed."""
        if (interval_s := self._notifier.watchdog_interval_s) is not None:
            yield self._watchdog_at + interval_s
        if self._notifier.has_unsent:
            yield self._flushed_at + _FLUSH_S

    def report_changes(self, phase: str, note: str, now: float) -> None:
        """Report what has changed; `note` is added to the state unless it is empty."""
        workers = self._children.workers
        starting = [w.child for w in workers if w.child.state is ChildState.STARTING]
        self._console.bars(Bar(child.launch.name, child.progress) for child in starting)
        n_ready = sum(map(_is_ready, workers))
        status = f"{phase}, {n_ready} of {len(workers)} workers ready{self._requests()}"
        status += f"; {note}" if note else ""
        if not self._has_served and self._is_serving():
            self._has_served = True
            self._notifier.ready(status)
        is_settled = self._on_demand is not None or not starting
        if self._has_served and not self._has_welcomed and is_settled:
            self._has_welcomed = True
            self._welcome(now, n_ready)
        interval_s = self._notifier.watchdog_interval_s
        if interval_s is not None and now >= self._watchdog_at + interval_s:
            # Stuck children were killed before, so reaching this line is progress.
            self._watchdog_at = now
            self._notifier.watchdog()
        if status != self._reported:
            self._reported = status
            self._notifier.status(status)
        self._notifier.flush()
        self._flushed_at = now

    def _requests(self) -> str:
        """Describe the requests of all gateways; empty before the first has reported."""
        reports = [w.child.reports for w in self._children.gateways if w.child.is_alive]
        counts = [
            (report["X_RUNNING"], report["X_WAITING"])
            for report in reports
            if "X_WAITING" in report
        ]
        if not counts:
            return ""
        n_running, n_waiting = (sum(map(int, column)) for column in zip(*counts, strict=True))
        return f", {n_running} requests running, {n_waiting} waiting"

    def _is_serving(self) -> bool:
        """Whether all gateways are ready, and a worker of each model."""
        if not all(map(_is_ready, self._children.gateways)):
            return False
        workers = self._children.workers
        models = {watch.child.launch.model for watch in workers}
        ready = {watch.child.launch.model for watch in workers if _is_ready(watch)}
        return self._on_demand is not None or ready == models

    def _welcome(self, now: float, n_ready: int) -> None:
        models = dict.fromkeys(watch.child.launch.model for watch in self._children.workers)
        notice = replace(
            self._notice,
            url=self._children.gateways[0].child.url,
            models=tuple(models if self._on_demand is None else self._on_demand),
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
        self._console.show(str(notice))


def _is_ready(watch: ChildWatch) -> bool:
    return watch.child.state is ChildState.READY
