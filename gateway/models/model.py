"""A model that can be loaded and unloaded: its state, its workers and its requests."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gateway.pool.status import ModelState
from protocol.process.control import ModelInfo, Phase, WorkerReport

TRANSITIONS: Mapping[ModelState, frozenset[ModelState]] = {
    ModelState.UNLOADED: frozenset({ModelState.LOADING, ModelState.LOADED}),
    ModelState.LOADING: frozenset({ModelState.LOADED, ModelState.UNLOADED}),
    ModelState.LOADED: frozenset({ModelState.LOADING, ModelState.UNLOADED}),
}
"""LOADED to LOADING: its only worker died and starts again. A sleeping model is LOADED here."""


class ManagedModel:
    """One model with its workers and requests."""

    def __init__(self, info: ModelInfo) -> None:
        self.info = info
        self.state = ModelState.UNLOADED
        self.is_stopping = False
        """Whether it is being unloaded: it takes no new request."""
        self.is_closing = False
        """Whether a model that has waited long needs its place: it takes no new request, either."""
        self.is_ceded = False
        """Whether another gateway needs its room for a request that has waited long: it takes no
        new request, and is unloaded when those that run have ended."""
        self.is_unlisted = False
        """Whether no source lists it any more: it is forgotten once it is unloaded."""
        self.n_deletions = 0
        """Requests that are deleting its files: it is not loaded again."""
        self.is_kept = False
        """Whether another gateway has requests of it: it is not unloaded to make room."""
        self.owes_idle = False
        """Whether another gateway waits until this one has no request of it."""
        self.n_requests = 0
        self.last_used = 0
        self.workers: dict[str, Phase] = {}
        self.progress = 0.0
        self.exit_code = 0
        self.why = ""
        """Why its last load failed; empty if it did not."""

    def __repr__(self) -> str:
        marks = f"{' stopping' if self.is_stopping else ''}{' failed' if self.has_failed else ''}"
        marks += " closing" if self.is_closing else ""
        return f"<ManagedModel {self.info.name} {self.state} requests={self.n_requests}{marks}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self.info.name

    @property
    def is_running(self) -> bool:
        """Whether it has processes, or is about to."""
        return self.state is not ModelState.UNLOADED

    @property
    def is_usable(self) -> bool:
        """Whether a request can be given to it now."""
        return self.state is ModelState.LOADED and not (
            self.is_stopping or self.is_closing or self.is_ceded
        )

    @property
    def is_idle(self) -> bool:
        """Whether it can be unloaded to make room: it is loaded and has no request."""
        is_loaded = self.state is ModelState.LOADED and not self.is_stopping
        return is_loaded and self.n_requests == 0 and not self.is_kept

    @property
    def has_failed(self) -> bool:
        """Whether it is not loaded because it could not be."""
        return self.state is ModelState.UNLOADED and self.exit_code != 0

    def become(self, state: ModelState) -> None:
        """Change the state along `TRANSITIONS`."""
        assert state in TRANSITIONS[self.state], f"{self!r} cannot become {state}"
        self.state = state

    def open_again(self) -> None:
        """Forget who needed its place, or kept it: it is unloaded."""
        self.is_stopping = self.is_closing = self.is_ceded = self.is_kept = self.owes_idle = False

    @contextmanager
    def deletion(self) -> Iterator[None]:
        """Do not load it while the block runs, which deletes its files."""
        self.n_deletions += 1
        try:
            yield
        finally:
            self.n_deletions -= 1

    def update(self, report: WorkerReport) -> bool:
        """Take in the phase of a worker; true if that changed the model's state."""
        if report.phase is Phase.GONE:
            self.workers.pop(report.worker, None)
            if report.exit_code:
                self.exit_code, self.why = report.exit_code, report.why
        else:
            self.workers[report.worker] = report.phase
        self.progress = report.progress
        self.is_stopping |= report.phase is Phase.LEAVING
        state = self._state_of_workers()
        if state is self.state:
            return False
        self.become(state)
        if state is ModelState.LOADED or self.is_stopping:
            self.exit_code, self.why = 0, ""
        if state is ModelState.UNLOADED:
            self.open_again()
        return True

    def _state_of_workers(self) -> ModelState:
        phases = self.workers.values()
        if Phase.READY in phases:
            return ModelState.LOADED
        if Phase.LOADING in phases or not phases:
            return ModelState.LOADING if phases else ModelState.UNLOADED
        return self.state if self.is_running else ModelState.LOADED
