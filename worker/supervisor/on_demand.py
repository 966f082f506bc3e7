"""Models that are loaded and unloaded by order of the gateway, as children of the supervisor.

It adds and removes watches, asks processes to leave, and reports their states. The gateway decides
which models run; the supervisor decides when a dead process starts again.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from protocol.config import config as configs
from protocol.errors import EXIT_CONFIG, ConfigError
from protocol.process.control import (
    AbortOrder,
    Line,
    Listed,
    ModelInfo,
    NoRoom,
    Order,
    Phase,
    Reply,
    RolloutOrder,
    RolloutReport,
    Verb,
    WorkerOrder,
    WorkerReport,
)
from worker.models.catalog import Catalog, CatalogEntry
from worker.supervisor.children import launch
from worker.supervisor.children.children import Children
from worker.supervisor.children.managed_child import ChildState
from worker.supervisor.children.watch import ChildWatch
from worker.supervisor.control import ControlPeer, ControlServer
from worker.supervisor.downloads import ModelDownloads
from worker.supervisor.recalls import ModelRecalls

logger = logging.getLogger("supervisor")

_PHASES = {
    ChildState.WAITING: Phase.LOADING,
    ChildState.STARTING: Phase.LOADING,
    ChildState.READY: Phase.READY,
    ChildState.QUARANTINED: Phase.GONE,
    ChildState.GIVEN_UP: Phase.GONE,
    ChildState.ENDED: Phase.GONE,
}
_PROGRESS_STEP = 0.05
"""Share of a load from one report to the next."""
_ON_DEMAND = "models are loaded on demand here: POST /models/unload and /models/load, or reload"


class OnDemand:
    """Adds and removes on-demand workers in the supervisor's list of watches."""

    keeps_going = True
    """It is normal that no worker runs."""
    drained: frozenset[str] = frozenset()

    def __init__(
        self, catalog: Catalog, control: ControlServer, folder: Path, *, models_max: int
    ) -> None:
        self._catalog = catalog
        self._models_max = models_max
        self._recalls: ModelRecalls[ControlPeer] = ModelRecalls(control)
        self._control = control
        self._folder = folder
        self._children: Children
        self._downloads = ModelDownloads(control.report, self._reread, self._download)
        self._n_started = 0
        self._loaded: dict[str, CatalogEntry] = {}
        """The entry that each model was loaded with; it may have left the list since."""
        self._files: dict[str, Path] = {}
        """The configuration that the workers of each model read at each of their starts."""
        self._reported: dict[str, WorkerReport] = {}
        """The last report of each worker, by name."""
        self._failed: dict[str, WorkerReport] = {}
        """Why the last load of a model failed; a gateway may not have been there to hear it."""

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models that can be loaded."""
        return tuple(self._catalog.entries)

    def open(self, children: Children, now: float) -> None:
        """Load the models with `load-on-startup`."""
        self._children = children
        self._downloads.open(children.selector)
        for entry in self._catalog.entries.values():
            if entry.load_on_startup:
                self._load(entry, now)

    def close(self) -> None:
        """Cancel all downloads."""
        self._downloads.close()

    def carry_out(
        self, line: Line, peer: ControlPeer, answer: Callable[[Reply], None], now: float
    ) -> None:
        """Carry out an order about a model, and refuse those to workers."""
        match line:
            case Order():
                self._carry_out(line, peer, now)
            case WorkerOrder() | RolloutOrder() | AbortOrder():
                answer(Reply(id=line.id, error=_ON_DEMAND))

    def _carry_out(self, order: Order, peer: ControlPeer, now: float) -> None:
        match order.verb:
            case Verb.RELOAD:
                self._reread(order.id)
            case Verb.DOWNLOAD:
                self._downloads.start(order.model)
            case Verb.DELETE:
                self._delete(order)
            case Verb.UNLOAD if order.if_unused:
                if self._of(order.model):  # else it has died, and the gateway will hear so
                    self._recalls.ask(order.model, peer, now, is_overdue=order.is_overdue)
            case Verb.UNLOAD:
                self._unload(order.model, now)
            case Verb.YIELD | Verb.KEEP | Verb.IDLE:
                self._recalls.take(order, peer)
            case Verb.LOAD:
                self._load_on_order(order.model, peer, now)

    def _load_on_order(self, model: str, peer: ControlPeer, now: float) -> None:
        entry = self._catalog.entries.get(model)
        if entry is None:
            self._refuse(model, "it is not there any more")
        elif self._of(model):
            logger.warning(
                "model is running already",
                extra={"model": model, "action": "the order is ignored"},
            )
        elif self._is_full():
            self.report_changes()  # the gateway gets the loaded models before it tries again
            self._control.answer(peer, NoRoom(model=model))
        else:
            self._load(entry, now)

    def _is_full(self) -> bool:
        """Whether the maximum number of models is loaded; each gateway gives its own orders."""
        running = {
            watch.child.launch.model
            for watch in self._children.workers
            if self._report(watch).phase is not Phase.GONE
        }
        return 0 < self._models_max <= len(running)

    def turn(self, now: float) -> None:
        """Unload the recalled models that no gateway keeps."""
        for model in self._recalls.settled(now):
            self._unload(model, now)

    def deadlines(self) -> Iterator[float]:
        """Yield the times at which `turn` must be called."""
        yield from self._recalls.deadlines

    def report_changes(self) -> None:
        """Report changed states, and remove the watches of ended processes."""
        for watch in self._children.workers:
            report = self._report(watch)
            if self._has_changed(report):
                self._reported[report.worker] = report
                self._control.report(report)
            if report.exit_code:
                self._failed[report.model] = report
            if report.phase is Phase.GONE:
                del self._reported[report.worker]
                self._children.watches.remove(watch)
                if not self._of(report.model):
                    self._recalls.forget(report.model)
                    self._remove_file(report.model)

    def _has_changed(self, report: WorkerReport) -> bool:
        last = self._reported.get(report.worker)
        if last is None or last.phase is not report.phase:
            return True
        is_loading = report.phase is Phase.LOADING
        return is_loading and abs(report.progress - last.progress) >= _PROGRESS_STEP

    def _report(self, watch: ChildWatch) -> WorkerReport:
        child = watch.child
        phase = _PHASES[child.state]
        is_fault = phase is Phase.GONE and watch.leaves_by is None
        if phase is not Phase.GONE and watch.leaves_by is not None:
            phase = Phase.LEAVING
        return WorkerReport(
            model=child.launch.model,
            worker=child.launch.name,
            phase=phase,
            progress=round(child.progress, 3),
            exit_code=watch.exit_code if is_fault else 0,
            why=watch.cause() if is_fault else "",
        )

    def greeting(self) -> Iterator[Line]:
        """Yield the first lines of a connection."""
        workers = (*self._failed.values(), *self._reported.values())
        yield Listed(
            models=self._infos(),
            is_greeting=True,
            workers=workers,
            downloads=self._downloads.running,
        )

    def _infos(self) -> tuple[ModelInfo, ...]:
        return tuple(entry.info for entry in self._catalog.entries.values())

    def report(self, now: float) -> RolloutReport:
        """Return that there is no rolling change."""
        return RolloutReport()

    def reread(self, now: float) -> None:
        """Look for models again, and tell the gateways."""
        self._reread()

    def _reread(self, answers: str = "") -> None:
        error = ""
        try:
            self._catalog.read()
        except ConfigError as failure:
            error = str(failure)
            logger.error(
                "models not reloaded",
                extra={"cause": error, "action": "the list stays as it was"},
            )
        self._list(answers, error)

    def _list(self, answers: str, error: str = "") -> None:
        """Send the list of models to all gateways, as the answer to an order of one of them."""
        self._control.report(Listed(models=self._infos(), answers=answers, error=error))

    def _download(self, model: str) -> launch.Launch:
        return launch.download(model, os.environ, self._catalog.base.hf_token)

    def _delete(self, order: Order) -> None:
        """Delete the files of a model that does not run, and tell the gateways what is left."""
        model = order.model
        if self._downloads.cancel(model):
            self._list(order.id)
            return
        try:
            if self._of(model):
                raise ConfigError("the model is running")
            self._catalog.delete(model)
            logger.info("model deleted", extra={"model": model})
        except ConfigError as failure:
            error = str(failure)
            logger.error(
                "model not deleted",
                extra={"model": model, "cause": error, "action": "its files stay"},
            )
            self._list(order.id, error)
            return
        self._reread(order.id)

    def _refuse(self, model: str, why: str) -> WorkerReport:
        report = WorkerReport(
            model=model, worker="", phase=Phase.GONE, exit_code=EXIT_CONFIG, why=why
        )
        self._control.report(report)
        return report

    def _load(self, entry: CatalogEntry, now: float) -> None:
        self._n_started += 1
        self._loaded[entry.info.name] = entry
        self._failed.pop(entry.info.name, None)
        path = self._files[entry.info.name] = self._folder / f"model-{self._n_started}.json"
        try:
            path.touch(mode=0o600)
            path.write_text(configs.dump(self._catalog.config_of(entry)))
        except OSError as error:
            why = f"cannot write {path}: {error.strerror}"
            self._failed[entry.info.name] = self._refuse(entry.info.name, why)
            self._remove_file(entry.info.name)
            return
        logger.info("loading", extra={"model": entry.info.name, "n_workers": len(entry.workers)})
        for worker in launch.workers(entry.workers, path, os.environ):
            self._children.add(worker, due_at=now)

    def _remove_file(self, model: str) -> None:
        with contextlib.suppress(OSError):
            self._files.pop(model).unlink()

    def _unload(self, model: str, now: float) -> None:
        if self._downloads.cancel(model):
            return
        self._recalls.forget(model)
        loaded = self._loaded.pop(model, None)
        entry = self._catalog.entries.get(model, loaded)
        grace_s = entry.stop_timeout_s if entry is not None else 0.0
        logger.info("unloading", extra={"model": model})
        for watch in self._of(model):
            if watch.leaves_by is None:
                watch.leaves_by = now + grace_s
                watch.leave()

    def _of(self, model: str) -> list[ChildWatch]:
        return [watch for watch in self._children.workers if watch.child.launch.model == model]
