"""Health, models and slots of the pool, as the gateway counts them.

It only reads the dispatcher.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.metrics.view import WorkerView
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.dispatch.queue_limits import QueuePlace
from gateway.pool.tasks.suspect import QuarantineView
from gateway.pool.tasks.task import TaskState
from gateway.pool.workers.worker import Worker, WorkerState
from protocol.errors import InvalidRequest, TaskError, loading
from protocol.wire.facts import ModelCard, SlotReport

NO_WORKER = ("loading model", "error")
"""Statuses of a pool in which no worker takes tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Health of the pool."""

    status: str
    """`ok`, `loading model`, `no slot available`, `error` or `draining`."""
    slots_idle: int
    slots_processing: int
    n_deferred: int
    n_workers: int
    """Workers that take tasks."""


class ModelState(StrEnum):
    """State of a model, by llama-server's names."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    SLEEPING = "sleeping"


class PoolStatus:
    """Reads what the dispatcher knows of workers, models and queues."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.why_absent: Callable[[str], TaskError | None] = lambda _model: None
        """Returns the error of requests to a model of which a worker is only configured."""

    def health(self, *, given_up: bool) -> Health:
        """Sum up the workers; with `given_up` a pool without any is an error, not loading."""
        workers = self._dispatcher.workers.values()
        ready = [worker for worker in workers if worker.is_ready]
        idle = sum(worker.n_free for worker in ready)
        if self._dispatcher.draining:
            status = "draining"
        elif not ready:
            status = "error" if given_up and not workers else "loading model"
        else:
            status = "ok" if idle else "no slot available"
        return Health(
            status=status,
            slots_idle=idle,
            slots_processing=sum(worker.n_busy for worker in workers),
            n_deferred=sum(self.queue_depths().values()),
            n_workers=len(ready),
        )

    def workers(self) -> tuple[WorkerView, ...]:
        """List the connected workers."""
        return tuple(map(_view, self._dispatcher.workers.values()))

    def find_worker(self, name: str) -> WorkerView | None:
        """Return the connected worker of a name, which may lack its host if it is the only one."""
        workers = self.workers()
        named = [worker for worker in workers if worker.name == name]
        named = named or [worker for worker in workers if worker.name.endswith(f"/{name}")]
        return named[0] if len(named) == 1 else None

    def card(self, model: str | None) -> ModelCard:
        """Find the model of a request; a pool with one model accepts any name.

        Another configured model must not answer in its place. Raises `TaskError`.
        """
        dispatcher, names = self._dispatcher, self._dispatcher.queue.depths()
        if model and model not in names and _named(dispatcher, model) == model:
            if (absent := self.why_absent(model)) is not None:
                raise absent
            if not dispatcher.cards.keys() >= dispatcher.slots.expected_models(model):
                raise loading()
        if len(names) > 1 and not model:
            raise InvalidRequest("model name is missing from the request", param="model")
        name = _named(dispatcher, model) if model and len(names) > 1 else next(iter(names), None)
        if name is not None and name not in names:
            raise InvalidRequest(f"model '{model}' not found", param="model")
        card = dispatcher.cards.get(name) if name is not None else None
        if card is None:
            raise loading()
        return card

    def cards(self) -> tuple[ModelCard, ...]:
        """List the models that are or were ready."""
        return tuple(self._dispatcher.cards.values())

    def card_of(self, name: str) -> ModelCard | None:
        """Return the card of a model that is or was ready, by its name."""
        return self._dispatcher.cards.get(name)

    def state(self, model: str) -> ModelState:
        """Return the state of a model: that of its worker which is closest to taking a task."""
        workers = [worker for worker in self._dispatcher.workers.values() if worker.model == model]
        have = [worker for worker in workers if worker.state is not WorkerState.LOADING]
        if have:
            is_sleeping = all(worker.is_sleeping for worker in have)
            return ModelState.SLEEPING if is_sleeping else ModelState.LOADED
        return ModelState.LOADING if workers else ModelState.UNLOADED

    def n_slots(self, model: str) -> int:
        """Count the slots of a model over all its workers."""
        workers = self._dispatcher.workers.values()
        return sum(worker.n_slots for worker in workers if worker.model == model)

    def queue_depths(self) -> Mapping[str, int]:
        """Count the tasks of every known model that have no slot yet, those sent ahead too."""
        depths = self._dispatcher.queue.depths()
        for worker in self._dispatcher.workers.values():
            depths[worker.model] = depths.get(worker.model, 0) + worker.n_ahead
        return depths

    def tasks_of_keys(self) -> Mapping[str, tuple[int, int]]:
        """Count the waiting and the running tasks of each API key."""
        counts: dict[str, tuple[int, int]] = {}
        for task in self._dispatcher.tasks.values():
            n_waiting, n_running = counts.get(task.spec.key, (0, 0))
            if task.state is TaskState.WAITING:
                n_waiting += 1
            elif task.spec.takes_credit:
                n_running += 1
            counts[task.spec.key] = n_waiting, n_running
        return counts

    def n_quarantined(self) -> int:
        """Count the requests that are refused because workers died with them."""
        return len(self.quarantined())

    def quarantined(self) -> tuple[QuarantineView, ...]:
        """List the requests that are refused because workers died with them."""
        return self._dispatcher.quarantine.views(asyncio.get_running_loop().time())

    def in_hand(self) -> tuple[int, int]:
        """Count this gateway's tasks that have a slot, and those that wait for one.

        What was sent ahead to a worker that several gateways share counts as this gateway's.
        """
        workers = self._dispatcher.workers.values()
        n_sent = sum(worker.n_taken for worker in workers)
        n_ahead = sum(min(worker.n_ahead, worker.n_taken) for worker in workers)
        return n_sent - n_ahead, n_ahead + sum(self._dispatcher.queue.depths().values())

    def place(self, task_id: int) -> QueuePlace | None:
        """Return the place in the queue of a task; None if it does not wait."""
        task = self._dispatcher.tasks.get(task_id)
        if task is None or task.state is not TaskState.WAITING:
            return None
        return self._dispatcher.limits.place(task)

    def tenant_of(self, task_id: int) -> str | None:
        """Return whose task it is; None if it has ended or was cancelled."""
        task = self._dispatcher.tasks.get(task_id)
        return None if task is None or task.state is TaskState.CANCELLED else task.spec.tenant


def _named(dispatcher: Dispatcher, model: str) -> str:
    """Return the name of the model that has this alias or file."""
    if model not in dispatcher.queue.depths():
        for name, card in dispatcher.cards.items():
            if model in card.aliases or _is_file(model, card.path):
                return name
    return model


def _is_file(name: str, path: str) -> bool:
    """Whether a name is the model's file: clients of llama-server may send the path of `-m`."""
    file = name.removeprefix("./")
    return file.endswith(".gguf") and f"/{path.lstrip('/')}".endswith(f"/{file.lstrip('/')}")


def _view(worker: Worker) -> WorkerView:
    """Return what the metrics show of a worker."""
    state = "sleeping" if worker.is_ready and worker.is_sleeping else str(worker.state)
    return WorkerView(
        name=worker.name,
        model=worker.model,
        state="held" if worker.is_held else state,
        n_slots=worker.n_slots,
        n_busy=worker.n_busy,
        n_waiting=worker.n_ahead,
        is_ejected=worker.is_ejected,
    )


def guess_slots(worker: Worker, base: int) -> tuple[SlotReport, ...]:
    """Report the slots of a worker that does not answer, from the credits taken there."""
    tasks = worker.slots
    return tuple(
        SlotReport(id=base + i, is_processing=i in tasks, task_id=tasks.get(i, -1))
        for i in range(worker.n_slots)
    )
