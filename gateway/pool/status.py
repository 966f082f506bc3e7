"""Health, models and slots of the pool, as the gateway counts them.

Pure: it only reads the dispatcher.
"""

from dataclasses import dataclass
from enum import StrEnum

from gateway.metrics.view import WorkerView
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.dispatch.workers import Worker, WorkerState
from gateway.pool.task import TaskState
from protocol.errors import InvalidRequest, loading
from protocol.wire.facts import ModelCard, SlotReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Health of the pool."""

    status: str
    """`ok`, `loading model`, `no slot available` or `error`."""
    slots_idle: int
    slots_processing: int
    n_deferred: int
    n_workers: int
    """Workers that take tasks."""
    draining: bool


class ModelState(StrEnum):
    """State of a model, by llama-server's names."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    SLEEPING = "sleeping"


def model_state(dispatcher: Dispatcher, model: str) -> ModelState:
    """Return the state of a model: that of its worker which is closest to taking a task."""
    workers = [one for one in dispatcher.workers.values() if one.model == model]
    have = [one for one in workers if one.state is not WorkerState.LOADING]
    if have:
        is_sleeping = all(one.is_sleeping for one in have)
        return ModelState.SLEEPING if is_sleeping else ModelState.LOADED
    return ModelState.LOADING if workers else ModelState.UNLOADED


def deferred(dispatcher: Dispatcher) -> dict[str, int]:
    """Count the tasks of every known model that have no slot yet, those sent ahead too."""
    depths = dispatcher.models
    for worker in dispatcher.workers.values():
        depths[worker.model] = depths.get(worker.model, 0) + worker.n_ahead
    return depths


def tasks_of_keys(dispatcher: Dispatcher) -> dict[str, tuple[int, int]]:
    """Count the waiting and the running tasks of each API key."""
    counts: dict[str, tuple[int, int]] = {}
    for task in dispatcher.tasks.values():
        n_waiting, n_running = counts.get(task.spec.key, (0, 0))
        if task.state is TaskState.WAITING:
            n_waiting += 1
        elif task.spec.takes_credit:
            n_running += 1
        counts[task.spec.key] = n_waiting, n_running
    return counts


def in_hand(dispatcher: Dispatcher) -> tuple[int, int]:
    """Count this gateway's tasks that have a slot, and those that wait for one.

    What was sent ahead to a worker that several gateways share counts as this gateway's.
    """
    n_sent = sum(worker.n_leases for worker in dispatcher.workers.values())
    ahead = (min(worker.n_ahead, worker.n_leases) for worker in dispatcher.workers.values())
    n_ahead = sum(ahead)
    return n_sent - n_ahead, n_ahead + sum(dispatcher.models.values())


def tenant_of(dispatcher: Dispatcher, task_id: int) -> str | None:
    """Return whose task it is; None if it has ended or was cancelled."""
    task = dispatcher.tasks.get(task_id)
    return None if task is None or task.state is TaskState.CANCELLED else task.spec.tenant


def count_slots(dispatcher: Dispatcher, model: str) -> int:
    """Count the slots of a model over all its workers."""
    return sum(one.n_slots for one in dispatcher.workers.values() if one.model == model)


def resolve(dispatcher: Dispatcher, model: str | None) -> ModelCard:
    """Find the model of a request; a pool with one model accepts any name. Raises `TaskError`."""
    names = dispatcher.models
    if len(names) > 1 and not model:
        raise InvalidRequest("model name is missing from the request", param="model")
    name = _named(dispatcher, model) if model and len(names) > 1 else next(iter(names), None)
    if name is not None and name not in names:
        raise InvalidRequest(f"model '{model}' not found", param="model")
    card = dispatcher.cards.get(name) if name is not None else None
    if card is None:
        raise loading()
    return card


def _named(dispatcher: Dispatcher, model: str) -> str:
    """Return the name of the model that has this alias or file."""
    if model not in dispatcher.models:
        for name, card in dispatcher.cards.items():
            if model in card.aliases or _is_file(model, card.path):
                return name
    return model


def _is_file(name: str, path: str) -> bool:
    """Whether a name is the model's file: clients of llama-server may send the path of `-m`."""
    file = name.removeprefix("./")
    return file.endswith(".gguf") and f"/{path.lstrip('/')}".endswith(f"/{file.lstrip('/')}")


def health(dispatcher: Dispatcher, *, given_up: bool) -> Health:
    """Sum up the workers; with `given_up` a pool without workers is an error, not loading."""
    ready = [worker for worker in dispatcher.workers.values() if worker.is_ready]
    idle = sum(worker.n_free for worker in ready)
    if not ready:
        status = "error" if given_up and not dispatcher.workers else "loading model"
    else:
        status = "ok" if idle else "no slot available"
    return Health(
        status=status,
        slots_idle=idle,
        slots_processing=sum(worker.n_busy for worker in dispatcher.workers.values()),
        n_deferred=sum(deferred(dispatcher).values()),
        n_workers=len(ready),
        draining=dispatcher.draining,
    )


def view(worker: Worker) -> WorkerView:
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
