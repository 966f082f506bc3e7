"""The connected workers, from their `Hello` to the loss of their connection. Pure."""

import math
from collections import OrderedDict

from gateway.pool.routing.policy import RoutingPolicy
from gateway.pool.tenants.task_queue import TaskQueue
from gateway.pool.workers.slot_map import SlotMap
from gateway.pool.workers.worker import Worker, WorkerState
from protocol.errors import ErrorCode, TaskError
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Heartbeat

_KEPT_S = 3600.0
"""How long a worker that has left keeps its slot ids."""
_WAIT_S = 3.0
"""How long tasks wait for the slots of a lost worker: a broken connection is made anew by then."""
_MAX_WORKERS, _MAX_MODELS = 1024, 256
"""Remembered when they have left."""


class Departed:
    """Names of workers or models that are gone, ordered by when they left.

    They are kept for a limited time and up to a limited number. A worker that comes back keeps its
    slot ids and its measured speed; one that is started under a new name never comes back.
    """

    def __init__(self, most: int, kept_s: float) -> None:
        self._most = most
        self._kept_s = kept_s
        self._left_at: OrderedDict[str, float] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Departed {len(self._left_at)}>"

    def left(self, name: str, now: float) -> None:
        """Note that one has left."""
        self._left_at[name] = now
        self._left_at.move_to_end(name)

    def back(self, name: str) -> None:
        """Note that one of this name is here again."""
        self._left_at.pop(name, None)

    def due(self, now: float) -> list[str]:
        """Take out those to be forgotten: gone for too long, or too many have left since."""
        found: list[str] = []
        for name, left_at in self._left_at.items():
            if now - left_at < self._kept_s and len(self._left_at) - len(found) <= self._most:
                break
            found.append(name)
        for name in found:
            del self._left_at[name]
        return found


class ConnectedWorkers:
    """Stores what workers report of themselves."""

    def __init__(self, routing: RoutingPolicy, queue: TaskQueue) -> None:
        self.by_key: dict[str, Worker] = {}
        """By the key of their connection."""
        self.cards: dict[str, ModelCard] = {}
        """The newest card of every model that is or was ready."""
        self.slots = SlotMap()
        self._departed = Departed(_MAX_WORKERS, _KEPT_S)
        self._lost = Departed(_MAX_WORKERS, _WAIT_S)
        """Those whose slots tasks still wait for."""
        self._gone: set[str] = set()
        """Those whose slots no task waits for: they were told to leave, or have not come back."""
        self._models = Departed(_MAX_MODELS, math.inf)
        """Models without a worker: they stay known, and their tasks wait."""
        self._unloaded: dict[str, str] = {}
        """Models that were unloaded, and why their tasks fail."""
        self.n_shared = 0
        """Workers that other gateways use too."""
        self._routing = routing
        self._queue = queue

    def __repr__(self) -> str:
        return f"<ConnectedWorkers {len(self.by_key)} shared={self.n_shared}>"

    def hello(self, key: str, name: str, model: str) -> None:
        """Note a worker that loads its model: tasks for that model may wait from now on."""
        self._unloaded.pop(model, None)
        self._departed.back(name)
        self.by_key[key] = Worker(key, name, model, self._routing.order.changes)
        self._queue.open(model)

    def ready(self, key: str, card: ModelCard, *, is_held: bool, granted: int) -> bool:
        """Note that a worker has loaded its model; return whether this opens its slots."""
        worker = self.by_key[key]
        if worker.state is not WorkerState.LOADING:
            return False
        worker.open(card, is_held=is_held, granted=granted)
        if not is_held:
            self._open(worker, card)
        return not is_held

    def admitted(self, key: str) -> bool:
        """Note that a worker is no longer held; return whether this opens its slots."""
        worker = self.by_key[key]
        if not worker.is_held or worker.card is None:
            return False
        worker.admit()
        self._open(worker, worker.card)
        return True

    def _open(self, worker: Worker, card: ModelCard) -> None:
        self._queue.open(card.name)
        self._models.back(card.name)
        self._lost.back(worker.name)
        self._gone.discard(worker.name)
        self.cards[card.name] = card
        self.slots.reserve(worker.name, card)
        self._routing.opened(worker)

    def shares(self, key: str, heartbeat: Heartbeat) -> bool:
        """Store the credits that a worker grants to this gateway; return whether they grew."""
        worker = self.by_key[key]
        self.n_shared += heartbeat.is_shared - worker.is_shared
        return worker.share(heartbeat)

    def sleeps(self, key: str, is_sleeping: bool) -> None:
        """Note whether a worker has unloaded its model."""
        worker = self.by_key[key]
        if is_sleeping and not worker.is_sleeping:
            self._routing.emptied(key)
        worker.sleep(is_sleeping)

    def lost(self, key: str, now: float) -> Worker:
        """Forget a connection, and return its worker with the tasks that it had."""
        worker = self.by_key.pop(key)
        if not self._is_here(worker.name):
            self._departed.left(worker.name, now)
            if worker.state is WorkerState.LEAVING:
                self._gone.add(worker.name)
            elif worker.name not in self._gone:
                self._lost.left(worker.name, now)
        if not self._has_worker(worker.model):
            self._models.left(worker.model, now)
        self.n_shared -= worker.is_shared
        self._routing.lost(worker)
        return worker

    def is_gone(self, name: str) -> bool:
        """Return whether tasks for the slots of a worker go to others until it is ready again.

        Its cache is lost: it was told to leave and has left, or it was lost and is not back.
        """
        return name in self._gone

    def give_up_lost(self, now: float) -> list[str]:
        """Note that lost workers are gone, and return their names, if they were waited for."""
        names = self._lost.due(now)
        self._gone.update(names)
        return names

    def forget(self, name: str) -> bool:
        """Forget a worker unless it is connected; return whether it was forgotten.

        A worker that is configured on this host keeps its slot ids, too: see `SlotMap.expect`.
        """
        if self._is_here(name):
            return False
        self._departed.back(name)
        self._lost.back(name)
        self._gone.discard(name)
        self.slots.forget(name)
        self._routing.forget(name)
        return True

    def forget_departed(self, now: float) -> list[str]:
        """Forget the workers that were away too long, and their models; return their names."""
        gone = self._departed.due(now)
        for name in gone:
            if not self.slots.is_configured(name):
                self._lost.back(name)
                self._gone.discard(name)
                self.slots.forget(name)
            self._routing.forget(name)
        for model in self._models.due(now):
            self.cards.pop(model, None)
            self._queue.close(model)
            self._routing.forget_model(model)
        return gone

    def unload(self, model: str, why: str) -> None:
        """Note a model for which no worker is started any more; it may still have some here."""
        self._unloaded[model] = why

    def is_unloaded(self, model: str) -> bool:
        """Return whether the last worker of an unloaded model is gone."""
        return model in self._unloaded and not self._has_worker(model)

    def unloaded_error(self, model: str) -> TaskError:
        """Return the error of the tasks of an unloaded model."""
        return TaskError(ErrorCode.UNAVAILABLE, f"model '{model}' {self._unloaded[model]}")

    def _has_worker(self, model: str) -> bool:
        return any(worker.model == model for worker in self.by_key.values())

    def _is_here(self, name: str) -> bool:
        return any(other.name == name for other in self.by_key.values())

    def close(self, model: str) -> None:
        """Close the queue of a model that no worker serves or loads, and none ever did."""
        if model not in self.cards and not self._has_worker(model):
            self._queue.close(model)
