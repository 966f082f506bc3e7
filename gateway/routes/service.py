"""What every endpoint needs: configuration, pool, metrics, limits, readers of bodies."""

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope

from gateway.api.fields.bounds import bounds_of, check_body, check_known
from gateway.api.fields.endpoints import BODIES
from gateway.api.fields.forms import from_form
from gateway.http.answer_budget import AnswerBudget
from gateway.http.bodies.body import (
    HELD,
    MIB,
    BodyLimits,
    in_thread,
    is_form,
    read_form,
    read_json,
    read_list,
)
from gateway.http.bodies.parsing import parse_texts
from gateway.http.disconnect import answered, disconnected, guarded
from gateway.http.errors import RequestRefused
from gateway.http.origin.request_origin import plain_origin
from gateway.http.origin.urgency import read_urgency
from gateway.http.waiting import keep_preparing_in_time
from gateway.keys.api_key import key_of, limits_of
from gateway.media.loader import MediaLoader
from gateway.metrics.metrics import Metrics
from gateway.models.leases import MODEL_LEASES
from gateway.models.manager import ModelManager
from gateway.models.model import ManagedModel
from gateway.pool.pool import Pool
from gateway.pool.requests.record import REQUEST
from gateway.pool.status import NO_WORKER, Health
from gateway.pool.tasks.live_chats import LiveChats
from gateway.replay.keeping import StreamKeeper
from gateway.siblings.siblings import Siblings
from protocol.config.config import GatewayConfig
from protocol.errors import loading
from protocol.wire.facts import ModelCard
from protocol.wire.messages import TaskMessage
from protocol.wire.schema import wrong_type

T = TypeVar("T")


class ReadRequest(NamedTuple):
    """A request whose body is read and within all bounds."""

    body: Any
    """An object, or an array where the endpoint takes one."""
    card: ModelCard
    is_large: bool
    scope: Scope
    receive: Receive

    async def in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Do work that grows with the body: in a thread if the body is large."""
        return await in_thread(self.is_large, work, *args)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The gateway as its endpoints see it."""

    config: GatewayConfig
    pool: Pool
    metrics: Metrics
    models: ModelManager | None
    """Loads and unloads models; None if the models are fixed."""
    media: MediaLoader
    siblings: Siblings
    """The other gateways of this host."""
    keeper: StreamKeeper
    """Keeps the streams that are to be read again."""
    live: LiveChats = field(default_factory=LiveChats)
    answers: AnswerBudget = field(default_factory=AnswerBudget)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def body_limits(self) -> BodyLimits:
        """Return how large and how slow a body may be."""
        config = self.config
        return BodyLimits(
            max_bytes=config.max_body_mib * MIB,
            timeout_s=min(config.limits.body_patience_s, config.timeout_s),
            fields=config.limits,
        )

    async def read(self, scope: Scope, receive: Receive, kind: str) -> ReadRequest:
        """Read a body of this kind and find its model.

        Checks every field against its bound. Raises `TaskError`, `RequestRefused`, `ClientGone`.
        """
        body = await self.read_body(scope, receive, kind)
        return await self.with_model(body, scope, receive, kind)

    async def read_body(self, scope: Scope, receive: Receive, kind: str) -> Any:
        """Read a body of this kind, which counts as a request of its key; raises as `read` does."""
        self.pool.dispatcher.allowances.request(scope["tenant"], limits_of(scope))
        if kind == "Adapters":
            return await read_list(scope, receive, self.body_limits)
        if BODIES[kind].is_form or is_form(scope):
            form = await read_form(scope, receive, self.body_limits)
            parse = partial(parse_texts, limits=self.config.limits)
            return await in_thread(_is_large(scope), from_form, kind, form, parse)
        return await read_json(scope, receive, self.body_limits)

    async def with_model(self, body: Any, scope: Scope, receive: Receive, kind: str) -> ReadRequest:
        """Find the model of a body that was read, and check its fields; raises as `read` does."""
        if kind == "Adapters":
            model = Request(scope).query_params.get("model")
        else:
            model = body.get("model")
            if isinstance(model, str):
                check_body("ModelOrder", {"model": model}, bounds_of(None, self.config.limits))
        card = await self.card(model, scope, receive)
        is_large = _is_large(scope)
        await in_thread(is_large, check_body, kind, body, bounds_of(card, self.config.limits))
        return ReadRequest(body, card, is_large, scope, receive)

    async def read_plain(self, scope: Scope, receive: Receive, kind: str) -> dict[str, Any]:
        """Read a body without a model; raises as `read` does."""
        body = await read_json(scope, receive, self.body_limits)
        check_body(kind, body, bounds_of(None, self.config.limits))
        return body

    async def read_order(self, scope: Scope, receive: Receive, kind: str) -> dict[str, Any]:
        """Read a body of the admin API, in which every field must be known; raises as `read` does.

        An order cannot be undone, so a typo must not turn it into another one.
        """
        body = await self.read_plain(scope, receive, kind)
        check_known(kind, body)
        return body

    async def card(self, model: Any, scope: Scope, receive: Receive) -> ModelCard:
        """Return the model that a request names, after loading it if necessary; raises `TaskError`.

        It stays loaded until the request ends.
        """
        if model is not None and not isinstance(model, str):
            raise wrong_type("model", "string", model)
        if self.models is None:
            card = self.pool.status.card(model)
            check_allowed(scope, model, card.name, *card.aliases)
            return card
        info = self.models.states.find(model).info
        check_allowed(scope, model, info.name, *info.aliases)
        asked = Request(scope).query_params.get("autoload", "")
        autoload = asked in ("true", "1") if asked else self.config.models_autoload
        touches = scope["method"] == "POST"
        used, is_loaded = self.models.use(model, autoload=autoload, touches=touches)
        if is_loaded:
            scope[MODEL_LEASES].callback(self.models.release, used)
        else:
            wait = partial(_wait, self.models, used, scope)
            await self.in_time(wait, scope, receive, "The model was not loaded")
        return await self.models.card(used)

    async def in_time(
        self, work: Callable[[], Coroutine[Any, Any, T]], scope: Scope, receive: Receive, what: str
    ) -> T:
        """Return the result of work that a request needs before it has tasks.

        Raises `ClientGone` if its client leaves, and `TaskError` that says `what` if its time is
        over.
        """
        spent_s = time.monotonic() - scope[REQUEST].arrived_at
        watcher = keep_preparing_in_time(read_urgency(scope, {}), spent_s, what)
        return await guarded(work(), disconnected(receive), watcher)

    async def fetched(
        self, work: Callable[[], Coroutine[Any, Any, T]], scope: Scope, receive: Receive
    ) -> T:
        """Return the result of work that fetches media; raises as `in_time` does."""
        return await self.in_time(work, scope, receive, "The images or sounds were not fetched")

    async def run(
        self, task: TaskMessage, card: ModelCard, scope: Scope, receive: Receive, kind: type[T]
    ) -> T:
        """Run a task that generates nothing; returns its answer, which is of this kind.

        Cancels the task if its client leaves. Raises `TaskError` or `ClientGone`.
        """
        stream = self.pool.submit(task, model=card.name, origin=plain_origin(scope))
        return await answered(stream, receive, kind)

    def health(self) -> Health:
        """Return the pool's health; a pool that loads models on demand is `ok` without workers."""
        health = self.pool.health()
        is_well = self.models is not None and health.status in NO_WORKER
        return replace(health, status="ok") if is_well else health

    def ready_cards(self) -> tuple[ModelCard, ...]:
        """Return the models; raises `TaskError` while the first one is loading."""
        cards = self.pool.status.cards()
        if not cards and self.models is None:
            raise loading()
        return cards


def _is_large(scope: Scope) -> bool:
    return HELD in scope and scope[HELD].is_large


def may_use(scope: Scope, *names: str) -> bool:
    """Return whether the key of a request may use the model of these names."""
    key = key_of(scope)
    return key is None or key.allows(*names)


def check_allowed(scope: Scope, asked: str | None, *names: str) -> None:
    """Raise `RequestRefused` unless the key of a request may use the model of these names.

    The refusal repeats the name that the client has `asked` for, not the model's own.
    """
    if not may_use(scope, *names):
        what = f"the model '{asked}'" if asked else "the model of this server"
        message = f"The key '{scope['key']}' may not use {what}"
        raise RequestRefused(403, message, "permission_error")


async def _wait(models: ModelManager, model: ManagedModel, scope: Scope) -> None:
    """Wait for a model and note its use; no other task may run in between."""
    await models.wait(model)
    scope[MODEL_LEASES].callback(models.release, model)
