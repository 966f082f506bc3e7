"""Which models run, which requests wait for them, and which model is unloaded to make room.

Pure and synchronous: each call returns the actions to perform. A place is taken in the line that
decides, so that no two models get the same one. Requests for a model that is not loaded share one
entry of a FIFO queue. A model with a running request is never unloaded to make room. If the running
models are never idle, the one used longest ago is closed for one that has waited long: its new
requests join the queue, and it is unloaded when the others have ended.
"""

from dataclasses import dataclass

from gateway.models.model import ManagedModel
from gateway.pool.status import ModelState
from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.process.control import Listed, ModelInfo, Order, Phase, Verb, WorkerReport

_RETRY_S = {"retry_after_s": 5}


@dataclass(frozen=True, slots=True)
class Send:
    """Send the supervisor an order."""

    order: Order


@dataclass(frozen=True, slots=True)
class Admit:
    """Resume a waiting request: its model is loaded and counts the request already."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """End the wait of a request with an error."""

    request_id: int
    error: TaskError


@dataclass(frozen=True, slots=True)
class StateChanged:
    """Publish the event that a model's state has changed."""

    model: str
    has_started: bool = False
    """Whether it was just ordered to load: llama-server has a separate event for that."""


Action = Send | Admit | Refuse | StateChanged


class ModelStates:
    """All models, and the queue for them."""

    def __init__(self, *, models_max: int) -> None:
        self.models: dict[str, ManagedModel] = {}
        self._models_max = models_max
        self._queue: dict[str, dict[int, None]] = {}
        """Model to the requests that wait for it, in the order of the models' first requests."""
        self._overdue: set[str] = set()
        """Models in the queue that have waited long."""
        self._n_used = 0

    def __repr__(self) -> str:
        waiting = " ".join(f"{name}:{len(requests)}" for name, requests in self._queue.items())
        return f"<ModelStates {' '.join(map(repr, self.models.values()))} queue=[{waiting}]>"

    # ---- requests -----------------------------------------------------------------------------

    def find(self, name: str | None) -> ManagedModel:
        """Find a model by name or alias; raises `InvalidRequest` with llama-server's message."""
        if not name:
            raise InvalidRequest("model name is missing from the request", param="model")
        model = self.named(name)
        if model is None:
            raise InvalidRequest(f"model '{name}' not found", param="model")
        return model

    def named(self, name: str) -> ManagedModel | None:
        """Find a model by name or alias."""
        if name in self.models:
            return self.models[name]
        return next((model for model in self.models.values() if name in model.info.aliases), None)

    def enqueue(self, request_id: int, model: ManagedModel) -> list[Action]:
        """Let a request wait for a model; it is admitted at once if the model is loaded."""
        self._queue.setdefault(model.name, {})[request_id] = None
        return self._serve_queue()

    def insist(self, model: ManagedModel) -> list[Action]:
        """Note that a request has waited long for a model: a busy one makes room for it."""
        if model.name not in self._queue:
            return []
        self._overdue.add(model.name)
        return self._serve_queue()

    def retry(self) -> list[Action]:
        """Load what waits, after a pause."""
        return self._serve_queue()

    def take(self, model: ManagedModel) -> bool:
        """Count a request of a model if it is loaded and open; false if it is not."""
        model.n_requests += model.is_usable
        return model.is_usable

    def leave(self, request_id: int) -> list[Action]:
        """Forget a request that no longer waits."""
        for name, requests in self._queue.items():
            if request_id in requests:
                del requests[request_id]
                if not requests:
                    self._leave_queue(name)
                return self._settle(self.models[name]) + self._serve_queue()
        return []

    def refuse_waiting(self, error: TaskError) -> list[Action]:
        """Refuse all requests that wait: this gateway loads nothing more."""
        actions: list[Action] = []
        for name in list(self._queue):
            actions += self._refuse_all(name, error)
            actions += self._settle(self.models[name])
        return actions

    def touch(self, model: ManagedModel) -> None:
        """Note that a model is used: the one used longest ago is unloaded first."""
        self._n_used += 1
        model.last_used = self._n_used

    def release(self, model: ManagedModel) -> list[Action]:
        """End one request of a model, which may have been removed from the list meanwhile."""
        model.n_requests -= 1
        assert model.n_requests >= 0, f"{model!r} was released too often"
        return self._settle(model) + self._serve_queue() if model.n_requests == 0 else []

    # ---- load and unload ----------------------------------------------------------------------

    def can_make_room(self) -> bool:
        """Whether one more model could be loaded without waiting for a request to end."""
        if self._n_free() > 0:
            return True
        return (
            any(model.is_stopping for model in self.models.values()) or self._victim() is not None
        )

    def unload(self, model: ManagedModel) -> list[Action]:
        """Unload a model; requests that wait for it to load are refused."""
        if model.is_stopping or not model.is_running:
            return []
        actions: list[Action] = []
        if model.state is ModelState.LOADING:
            actions += self._refuse_all(model.name, _not_running(model))
        return actions + self._stop(model)

    # ---- other gateways -------------------------------------------------------------------------

    def recalled(self, name: str, *, is_overdue: bool = False) -> list[Action]:
        """Answer whether a model may be unloaded to make room for another gateway."""
        model = self.models.get(name)
        if model is not None:
            model.is_ceded |= is_overdue and model.is_running
        if model is not None and self._is_needed(model):
            model.owes_idle = True
            return [Send(Order(verb=Verb.KEEP, model=name))]
        if model is not None:
            model.is_stopping = model.is_running
        return [Send(Order(verb=Verb.YIELD, model=name))]

    def kept(self, name: str, *, is_kept: bool) -> list[Action]:
        """Note whether another gateway has requests of a model; if so, it is not unloaded."""
        model = self.models.get(name)
        if model is None:
            return []
        model.is_kept = is_kept
        model.is_stopping &= not is_kept
        model.is_closing &= not is_kept
        return self._serve_queue()

    def refused_room(self, name: str) -> list[Action]:
        """Note that a model was not loaded, because all places are taken.

        If it is not known by what, `retry` is due after a pause.
        """
        model = self.models.get(name)
        if model is None or model.workers or not model.is_running:
            return []
        model.become(ModelState.UNLOADED)
        model.is_stopping = False
        is_known = self._n_free() <= 0
        return [StateChanged(name), *(self._serve_queue() if is_known else ())]

    def _settle(self, model: ManagedModel) -> list[Action]:
        """Report that a model has no request here, if another gateway waits for that."""
        if not model.owes_idle or self._is_needed(model):
            return []
        model.owes_idle = False
        return [Send(Order(verb=Verb.IDLE, model=model.name))]

    def _is_needed(self, model: ManagedModel) -> bool:
        is_wanted = model.name in self._queue and not model.is_ceded
        return model.n_requests > 0 or is_wanted

    # ---- reports of the supervisor --------------------------------------------------------------

    def listed(self, report: Listed) -> list[Action]:
        """Take in the list of models; unload running ones that have changed or are not listed."""
        if report.is_greeting:
            for model in self.models.values():
                self._forget_workers(model)
        infos = {info.name: info for info in report.models}
        actions: list[Action] = []
        for model in list(self.models.values()):
            info = infos.pop(model.name, None)
            actions += self._relist(model, info)
        self.models |= {name: ManagedModel(info) for name, info in infos.items()}
        for worker in report.workers:
            if worker.model in self.models:
                self.models[worker.model].update(worker)
        return actions + self._serve_queue()

    def reported(self, report: WorkerReport) -> list[Action]:
        """Take in the phase of a worker."""
        model = self.models.get(report.model)
        if model is None:
            return []
        was_stopping = model.is_stopping
        if report.phase is Phase.GONE and not report.worker:  # the order itself failed
            model.workers.clear()
        has_changed = model.update(report)
        actions: list[Action] = []
        if has_changed and model.state is ModelState.UNLOADED and not was_stopping:
            actions += self._refuse_all(model.name, _failed(model))
        elif model.is_stopping and not was_stopping and model.state is ModelState.LOADING:
            actions += self._refuse_all(model.name, _not_running(model))  # another gateway's order
        if model.state is ModelState.UNLOADED and model.is_unlisted:
            actions += self._remove(model)
        elif has_changed or report.phase is Phase.LOADING:
            actions.append(StateChanged(model.name))
        return actions + self._serve_queue()

    # ---- decisions ----------------------------------------------------------------------------

    def _serve_queue(self) -> list[Action]:
        """Admit requests of loaded models, load what has room, and make room for the rest."""
        actions: list[Action] = []
        needed: list[str] = []
        for name in list(self._queue):
            model = self.models[name]
            if model.is_usable:
                actions += self._admit_all(model)
            elif model.state is ModelState.UNLOADED and model.n_deletions:
                actions += self._refuse_all(name, _not_found(model))
            elif model.state is ModelState.UNLOADED and self._n_free() > 0:
                actions += self._start(model)
            elif model.state is ModelState.UNLOADED or model.is_stopping:
                needed.append(name)
        actions += self._make_room(len(needed))
        return actions + self._close_for(len(self._overdue.intersection(needed)))

    def _make_room(self, n_needed: int) -> list[Action]:
        actions: list[Action] = []
        n_leaving = sum(model.is_stopping for model in self.models.values())
        while self._n_free() + n_leaving < n_needed and (victim := self._victim()):
            actions += self._stop(victim, if_unused=True)
            n_leaving += 1
        return actions

    def _close_for(self, n_overdue: int) -> list[Action]:
        """Close as many busy models as the overdue ones need; open those again that need not be.

        What other gateways keep they close themselves.
        """
        n_leaving = sum(model.is_stopping for model in self.models.values())
        n_short = max(0, n_overdue - max(0, self._n_free()) - n_leaving)
        busy = [
            model
            for model in self.models.values()
            if (model.n_requests or model.is_closing or model.is_kept) and not model.is_stopping
        ]
        busy.sort(key=lambda model: (not model.is_closing, model.last_used))
        actions: list[Action] = []
        for place, model in enumerate(busy):
            model.is_closing = model.state is ModelState.LOADED and place < n_short
            if model.is_closing and model.is_kept and not model.n_requests:
                actions += self._stop(model, if_unused=True)
            if model.is_usable and model.name in self._queue:
                actions += self._admit_all(model)
        return actions

    def _n_free(self) -> int:
        if self._models_max <= 0:
            return 1  # always room for one more
        return self._models_max - sum(model.is_running for model in self.models.values())

    def _victim(self) -> ManagedModel | None:
        able = [
            model
            for model in self.models.values()
            if model.is_idle and (model.is_closing or model.name not in self._queue)
        ]
        return min(able, key=lambda model: model.last_used, default=None)

    def _start(self, model: ManagedModel) -> list[Action]:
        model.become(ModelState.LOADING)
        model.exit_code, model.why, model.progress = 0, "", 0.0
        self.touch(model)
        return [
            Send(Order(verb=Verb.LOAD, model=model.name)),
            StateChanged(model.name, has_started=True),
        ]

    def _stop(self, model: ManagedModel, *, if_unused: bool = False) -> list[Action]:
        model.is_stopping = True
        is_overdue = if_unused and bool(self._overdue)
        order = Order(
            verb=Verb.UNLOAD, model=model.name, if_unused=if_unused, is_overdue=is_overdue
        )
        return [Send(order)]

    def _admit_all(self, model: ManagedModel) -> list[Action]:
        requests = self._leave_queue(model.name)
        model.n_requests += len(requests)
        return [Admit(request_id) for request_id in requests]

    def _refuse_all(self, name: str, error: TaskError) -> list[Action]:
        return [Refuse(request_id, error) for request_id in self._leave_queue(name)]

    def _leave_queue(self, name: str) -> dict[int, None]:
        """Take a model out of the queue; return the requests that waited for it."""
        self._overdue.discard(name)
        return self._queue.pop(name, {})

    def _relist(self, model: ManagedModel, info: ModelInfo | None) -> list[Action]:
        """Take in the new listing of a model; None means that it is not listed."""
        is_same = info is not None and info.stamp == model.info.stamp
        model.is_unlisted = info is None
        if info is not None:
            model.info = info
        if model.is_running:
            return [] if is_same or model.is_stopping else self._stop(model)
        if info is None:
            return self._remove(model)
        model.exit_code, model.why = 0, ""
        return []

    def _remove(self, model: ManagedModel) -> list[Action]:
        del self.models[model.name]
        return self._refuse_all(model.name, _not_found(model))

    def _forget_workers(self, model: ManagedModel) -> None:
        """Forget a model's workers: a new connection reports them again."""
        model.workers.clear()
        model.open_again()
        if model.is_running:
            model.become(ModelState.UNLOADED)


def _failed(model: ManagedModel) -> TaskError:
    why = f": {model.why}" if model.why else ""
    return TaskError(ErrorCode.INTERNAL, f"model name={model.name} failed to load{why}")


def _not_running(model: ManagedModel) -> TaskError:
    return InvalidRequest(f"model name={model.name} is not running", param="model")


def _not_found(model: ManagedModel) -> TaskError:
    return InvalidRequest(f"model '{model.name}' not found", param="model")


def no_room() -> TaskError:
    """Return llama-server's error for a load while every running model is busy."""
    message = "model limit reached, try again later"
    return TaskError(ErrorCode.OVERLOADED, message, detail=_RETRY_S)


def too_long(limit_s: float) -> TaskError:
    """Return the error for a model that was not loaded or unloaded in time."""
    message = f"the models were not loaded or unloaded within {limit_s:g} s"
    return TaskError(ErrorCode.OVERLOADED, message, detail={"retry_after_s": 5})
