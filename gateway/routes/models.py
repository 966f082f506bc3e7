"""Loading and unloading models, and the stream of their changes, where the server has a choice."""

from collections.abc import Callable

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.sse import event
from gateway.http.disconnect import disconnected, guarded
from gateway.http.errors import success_response
from gateway.http.event_stream import EventStream
from gateway.models.events import Mailbox
from gateway.models.manager import ModelManager
from gateway.routes.service import Service, check_allowed, may_use
from protocol.errors import ErrorCode, InvalidRequest, TaskError, not_started


class ModelEndpoints:
    """POST /models/load, POST /models/unload, and POST and DELETE /models."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def load(self, request: Request) -> Response:
        """Load a model; answers when it is ready."""
        manager, name = await self._read(request)
        _check_named(manager, name, request.scope)
        await guarded(manager.load(name), disconnected(request.receive))
        return success_response()

    async def unload(self, request: Request) -> Response:
        """Unload a model, or give its download up; answers when that has started."""
        manager, name = await self._read(request)
        _check_named(manager, name, request.scope)
        await guarded(manager.unload(name), disconnected(request.receive))
        return success_response()

    async def _read(self, request: Request) -> tuple[ModelManager, str]:
        manager = chosen_by(self._service, request.scope["path"])
        body = await self._service.read_plain(request.scope, request.receive, "ModelOrder")
        name = body.get("model")
        return manager, name if isinstance(name, str) else ""

    async def download(self, request: Request) -> Response:
        """Fetch a model into the Hugging Face cache; answers when that has started."""
        manager, name = await self._read(request)
        if not name:
            raise InvalidRequest("model must be a non-empty string", param="model")
        if not self._service.config.models_cache:
            raise not_started("downloads", "`--models-cache`")
        await guarded(manager.download(name), disconnected(request.receive))
        return success_response()

    async def remove(self, request: Request) -> Response:
        """Delete a model of the Hugging Face cache; answers when its files are gone."""
        manager = chosen_by(self._service, request.scope["path"])
        name = request.query_params.get("model", "")
        if not name:
            raise InvalidRequest("model must be a non-empty string", param="model")
        model = manager.states.named(name)
        names = (model.name, *model.info.aliases) if model is not None else (name,)
        if not (model or name in manager.downloads) or not may_use(request.scope, *names):
            message = f"model name={name} is not found"
            raise TaskError(ErrorCode.NOT_FOUND, message, param="model")
        await guarded(manager.delete(names[0]), disconnected(request.receive))
        return success_response()


class ModelEventStream:
    """GET /models/sse: an endless stream with an event at every change of a model's state.

    It writes its own frames, so it is an ASGI application.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the events."""
        config = self._service.config
        manager = chosen_by(self._service, scope["path"])
        events = EventStream(
            send,
            config.ping_interval_s,
            min(config.limits.send_timeout_s, config.timeout_s),
        )
        with manager.events.listening() as mailbox:
            await events.open()
            shown = _shown_to(scope, manager)
            if scope["method"] != "HEAD":
                work = _pass_on(mailbox, events, shown)
                await guarded(work, disconnected(receive), events.keep_alive())
        await events.finish()


async def _pass_on(mailbox: Mailbox, events: EventStream, shown: Callable[[str], bool]) -> None:
    while (news := await mailbox.get()) is not None:
        if shown(news["model"]):
            await events.write(event(orjson.dumps(news)))


def _shown_to(scope: Scope, manager: ModelManager) -> Callable[[str], bool]:
    """Return which models' events the key of a request may see; `*` stands for no model."""

    def shown(name: str) -> bool:
        model = manager.states.named(name)
        aliases = model.info.aliases if model is not None else ()
        return name == "*" or may_use(scope, name, *aliases)

    return shown


def _check_named(manager: ModelManager, name: str, scope: Scope) -> None:
    model = manager.states.named(name)
    if model is not None:  # else the manager refuses it in its own words
        check_allowed(scope, name, model.name, *model.info.aliases)


def chosen_by(service: Service, path: str) -> ModelManager:
    """Return the model manager; raises `TaskError` if this server's models are fixed."""
    if service.models is None:
        raise not_started(path, "`--models-dir` or `--models-preset`")
    return service.models
