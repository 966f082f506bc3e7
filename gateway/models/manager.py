"""Loads and unloads models for requests, which wait here until their model is loaded.

It performs what `ModelStates` decides, and owns the futures of waiting requests and the channel to
the supervisor. State changes on the loop only, in calls that do not await.
"""

import asyncio
import contextlib
import itertools
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from gateway.api.llamacpp.views import model as shown_model
from gateway.fleet.channel import Channel, unreachable
from gateway.models.downloads import DownloadBook
from gateway.models.events import ModelEvents
from gateway.models.model import ManagedModel
from gateway.models.state_machine import (
    Action,
    Admit,
    ModelStates,
    Refuse,
    Send,
    StateChanged,
    no_room,
    too_long,
)
from gateway.models.views import RELOADED, change, listed, removed
from gateway.pool.pool import Pool
from gateway.pool.status import ModelState
from protocol.errors import ErrorCode, InvalidRequest, TaskError, loading, shutting_down
from protocol.process.control import (
    CACHE_SOURCE,
    DownloadReport,
    Line,
    Listed,
    ModelKept,
    ModelRecall,
    NoRoom,
    Order,
    Verb,
    WorkerReport,
)
from protocol.wire.facts import ModelCard

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_LIST_S = 10.0
"""Seconds that the start waits for the supervisor's list of models."""
_DIAL_S = 10.0
"""A worker that serves dials each gateway at least once a second."""
_PATIENCE_S = 10.0
"""Seconds that a model waits for others to be idle; then the one used longest ago is closed."""
_NO_ROOM_S = 0.5
"""Pause after a model found no room although none of those that are known takes it."""
_LOOK_S = 0.02
"""Seconds between two looks for a worker that is dialling: a load takes a second or more."""


class ModelManager:
    """All models that can be loaded, behind `use`, `load` and `unload`."""

    def __init__(self, path: str, pool: Pool, *, models_max: int, timeout_s: float) -> None:
        self.states = ModelStates(models_max=models_max)
        self.channel = Channel(path, self._on_line, self._fail_orders)
        self._timeout_s = timeout_s
        self._pool = pool
        self._created = int(time.time())
        self._request_ids = itertools.count(1)
        self._waiting: dict[int, tuple[ManagedModel, asyncio.Future[None]]] = {}
        self._waiters: list[asyncio.Future[None]] = []
        """Woken by every line of the supervisor."""
        self._greeted = asyncio.Event()
        self._answers: dict[str, asyncio.Future[Listed]] = {}
        """By the id of the order that is to be answered."""
        self.events = ModelEvents()
        self.downloads = DownloadBook(self.events)
        self._is_draining = False

    def __repr__(self) -> str:
        return f"<ModelManager waiting={len(self._waiting)} {self.states!r}>"

    async def start(self) -> None:
        """Dial the supervisor and wait for its list of models."""
        self.channel.open()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LIST_S):
                await self._greeted.wait()

    def drain(self) -> None:
        """Load nothing more; refuse the requests that wait, and end the event streams."""
        self._is_draining = True
        self._perform(self.states.refuse_waiting(shutting_down()))
        self._wake()
        self.events.end()

    def close(self) -> None:
        """Drain, and close the channel."""
        self.drain()
        self.channel.close()

    # ---- requests -----------------------------------------------------------------------------

    def use(self, name: str | None, *, autoload: bool, touches: bool) -> tuple[ManagedModel, bool]:
        """Lease a model if it is loaded; false if the caller must wait for it.

        Every lease is given back by `release`. Raises `TaskError`.
        """
        model = self.states.find(name)
        if touches:
            self.states.touch(model)
        if self.states.take(model):
            return model, True
        if not autoload and not model.is_running:
            raise InvalidRequest("model is not loaded", param="model")
        if not autoload:
            raise loading()
        return model, False

    async def card(self, model: ManagedModel) -> ModelCard:
        """Return the card of a leased model; raises `TaskError` if it has no worker here.

        The supervisor may tell that a worker serves before that worker has dialled this gateway.
        """
        until = time.monotonic() + _DIAL_S
        while True:
            card = self._loaded(model.name)
            if card is not None:
                return card
            if not model.is_running or time.monotonic() > until:
                raise loading()
            await asyncio.sleep(_LOOK_S)

    def release(self, model: ManagedModel) -> None:
        """Give one lease of a model back."""
        self._perform(self.states.release(model))

    async def wait(self, model: ManagedModel) -> None:
        """Lease a model once it is loaded; raises `TaskError`. May be cancelled at any time."""
        self._check_running()
        request_id, future = self._enter(model)
        try:
            async with asyncio.timeout(self._timeout_s):
                while not (await asyncio.wait({future}, timeout=_PATIENCE_S))[0]:
                    self._insist(model)
                await future
        except TimeoutError as error:
            self._give_up(request_id, model, future)
            raise too_long(self._timeout_s) from error
        except BaseException:
            self._give_up(request_id, model, future)
            raise

    def _insist(self, model: ManagedModel) -> None:
        """Make room for a model that has waited long."""
        if not model.is_running:
            action = "of the loaded models the one used longest ago takes no new requests"
            logger.info("model waits", extra={"model": model.name, "action": action})
            self._perform(self.states.insist(model))

    def _enter(self, model: ManagedModel) -> tuple[int, "asyncio.Future[None]"]:
        request_id = next(self._request_ids)
        future = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = (model, future)
        self._perform(self.states.enqueue(request_id, model))
        return request_id, future

    def _give_up(
        self, request_id: int, model: ManagedModel, future: "asyncio.Future[None]"
    ) -> None:
        """Leave the queue, or give back a lease that was granted but not yet noticed."""
        if self._waiting.pop(request_id, None) is not None:
            self._perform(self.states.leave(request_id))
        elif future.done() and not future.cancelled() and future.exception() is None:
            self.release(model)

    # ---- load and unload ----------------------------------------------------------------------

    async def load(self, name: str) -> None:
        """Begin to load a model, unloading another if there is no room. Raises `TaskError`."""
        model = self.states.named(name)
        if model is None:
            raise TaskError(ErrorCode.NOT_FOUND, "model is not found", param="model")
        if model.is_running:
            raise InvalidRequest("model is already running", param="model")
        self._check_running()
        if not self.states.can_make_room():
            raise no_room()
        request_id, future = self._enter(model)
        try:
            await self._until(lambda: future.done() or (model.is_running and not model.is_stopping))
        finally:
            self._give_up(request_id, model, future)
        if future.done():
            future.result()

    async def unload(self, name: str) -> None:
        """Begin to unload a model, or give its download up; raises `TaskError`.

        Its running tasks may finish within the drain time.
        """
        if name in self.downloads:
            self.channel.send(Order(verb=Verb.UNLOAD, model=name))
            await self._until(lambda: name not in self.downloads)
            return
        model = self.states.named(name)
        if model is None:
            raise InvalidRequest("model is not found", param="model")
        if not model.is_running:
            raise InvalidRequest("model is not running", param="model")
        self._perform(self.states.unload(model))

    async def download(self, name: str) -> None:
        """Begin to fetch a model into the cache; raises `TaskError`."""
        if self.states.named(name) is not None or name in self.downloads:
            raise InvalidRequest(f"model '{name}' already exists", param="model")
        self._check_running()
        await self._order(Order(verb=Verb.DOWNLOAD, model=name), self.downloads.expect(name))

    async def delete(self, name: str) -> None:
        """Unload a model and delete its files, or give its download up; raises `TaskError`."""
        self._check_running()
        model = self.states.named(name)
        if model is not None and model.info.source != CACHE_SOURCE:
            message = f"model name={model.name} is not removable (not from cache)"
            raise InvalidRequest(message, param="model")
        if model is None:
            await self._delete_files(name)
            return
        with model.deletion():
            if model.is_running:
                self._perform(self.states.unload(model))
                await self._until(lambda: not model.is_running)
            await self._delete_files(name)

    async def _delete_files(self, name: str) -> None:
        report = await self._list_after(Verb.DELETE, name)
        if error := report.error:
            raise TaskError(ErrorCode.INTERNAL, f"model not deleted: {error}")
        self.events.publish(removed(name))

    async def reload(self) -> None:
        """Look for models again, and wait until those that changed or are gone are unloaded."""
        self._check_running()
        report = await self._list_after(Verb.RELOAD)
        if error := report.error:
            raise TaskError(ErrorCode.INTERNAL, f"models not reloaded: {error}")
        leaving = [model for model in self.states.models.values() if model.is_stopping]
        await self._until(lambda: not any(model.is_stopping for model in leaving))
        self.events.publish(RELOADED)

    async def _list_after(self, verb: Verb, model: str = "") -> Listed:
        """Send an order and return the list of models that answers it; raises `TaskError`."""
        order = Order(verb=verb, model=model, id=uuid.uuid4().hex)
        answer = self._answers[order.id] = asyncio.get_running_loop().create_future()
        try:
            return await self._order(order, answer)
        finally:
            del self._answers[order.id]

    async def _order(self, order: Order, answer: "asyncio.Future[T]") -> T:
        """Send the supervisor an order and return its answer; raises `TaskError` at a drain."""
        self.channel.send(order)
        await self._until(lambda: answer.done() or self._is_draining)
        if not answer.done():
            raise shutting_down()
        return answer.result()

    # ---- listing -----------------------------------------------------------------------------

    def listing(self, name: str | None = None) -> dict[str, Any]:
        """Return GET /models; of the models on disk only the one of a name or alias, if given."""
        data = [
            listed(model, self._shown(model), self._created, sleeps=self._sleeps(model.name))
            for model in self.states.models.values()
            if not model.info.is_hidden
            and (name is None or name == model.name or name in model.info.aliases)
        ]
        return {"data": data + self.downloads.listed(self._created), "object": "list"}

    def _shown(self, model: ManagedModel) -> Mapping[str, Any]:
        """Return the entry of a loaded model in the list; empty if the pool does not know it."""
        card = self._loaded(model.name) if model.is_running else None
        return shown_model(card, self._created) if card is not None else {}

    def _sleeps(self, name: str) -> bool:
        card = self._loaded(name)
        return card is not None and self._pool.status.state(name) is ModelState.SLEEPING

    def _loaded(self, name: str) -> ModelCard | None:
        """Return the card of a model that has a worker here."""
        return self._pool.status.card_of(name)

    # ---- the supervisor -------------------------------------------------------------------------

    def _on_line(self, line: Line) -> None:
        match line:
            case Listed():
                self._take_list(line)
            case WorkerReport(model=name):
                self._perform(self.states.reported(line))
                model = self.states.models.get(name)
                if model is None or not model.is_running:
                    self._pool.transport.abandon(name)
            case ModelRecall(model=name, is_overdue=is_overdue):
                self._perform(self.states.recalled(name, is_overdue=is_overdue))
            case ModelKept(model=name, is_kept=is_kept):
                self._perform(self.states.kept(name, is_kept=is_kept))
            case DownloadReport():
                self.downloads.take_report(line)
            case NoRoom(model=name):
                self._perform(self.states.refused_room(name))
                asyncio.get_running_loop().call_later(_NO_ROOM_S, self._retry)
        self._wake()

    def _retry(self) -> None:
        if not self._is_draining:
            self._perform(self.states.retry())

    def _take_list(self, line: Listed) -> None:
        self._perform(self.states.listed(line))
        if line.is_greeting:
            self._greeted.set()
            self.downloads.take_greeting(line.downloads, self.states.models)
        future = self._answers.get(line.answers)
        if future is not None and not future.done():
            future.set_result(line)

    def _fail_orders(self) -> None:
        """Fail the orders that wait for a list: it went down with the connection."""
        for future in self._answers.values():
            if not future.done():
                future.set_exception(unreachable())
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until a line of the supervisor makes the condition true; raises `TaskError`."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while not condition():
                    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiters.append(waiter)
                    await waiter
        except TimeoutError as error:
            raise too_long(self._timeout_s) from error

    def _check_running(self) -> None:
        if self._is_draining:
            raise shutting_down()
        if not self.channel.is_open:
            raise unreachable()

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send(order):
                    logger.info(
                        "order sent", extra={"order": order.verb, "model": order.model or None}
                    )
                    self.channel.send(order)
                case Admit(request_id):
                    self._admit(request_id)
                case Refuse(request_id, error):
                    self._refuse(request_id, error)
                case StateChanged(name, has_started):
                    self._publish(name, has_started=has_started)

    def _admit(self, request_id: int) -> None:
        model, future = self._waiting.pop(request_id)
        if future.done():  # its request was cancelled and has not run since
            self.release(model)
        else:
            future.set_result(None)

    def _refuse(self, request_id: int, error: TaskError) -> None:
        _, future = self._waiting.pop(request_id)
        if not future.done():
            future.set_exception(error)

    def _publish(self, name: str, *, has_started: bool) -> None:
        model = self.states.models.get(name)
        if model is None or not self.events.has_listeners:
            return
        shown, sleeps = self._shown(model), self._sleeps(name)
        self.events.publish(change(model, shown, has_started=has_started, sleeps=sleeps))
