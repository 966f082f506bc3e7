"""What a server that chooses its models is told: load, unload, look again, tell me of changes."""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.http.disconnect import disconnected, guarded
from gateway.http.errors import json_response
from gateway.http.event_stream import EventStream
from gateway.http.sse import event
from gateway.models.events import Mailbox
from gateway.models.manager import ModelManager
from gateway.routes.service import Service
from protocol.errors import ErrorCode, InvalidRequest, TaskError

_SUCCESS = {"success": True}


class ModelOrders:
    """POST /models/load and POST /models/unload."""

    def __init__(self, service: Service, *, loads: bool) -> None:
        self._service = service
        self._loads = loads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        router = chosen_by(self._service, scope["path"])
        name = _name(await self._service.read_plain(scope, receive, "ModelOrder"))
        if self._loads:
            await guarded(router.load(name), disconnected(receive))
        else:
            router.unload(name)
        await json_response(_SUCCESS)(scope, receive, send)


class ModelEventStream:
    """GET /models/sse: an event at every change of a model's state, without an end."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        config = self._service.config
        router = chosen_by(self._service, scope["path"])
        events = EventStream(
            send,
            config.ping_interval_s,
            min(config.limits.send_timeout_s, config.timeout_s),
        )
        with router.news.listening() as mailbox:
            await events.open()
            await guarded(_pass_on(mailbox, events), disconnected(receive), events.keep_alive())
        await events.finish()


async def _pass_on(mailbox: Mailbox, events: EventStream) -> None:
    while (news := await mailbox.get()) is not None:
        await events.write(event(orjson.dumps(news)))


class ModelRemoval:
    """DELETE /models: only downloads can be deleted, and there are none here."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def remove(self, request: Request) -> Response:
        """Refuse in llama-server's words."""
        router = chosen_by(self._service, request.url.path)
        name = request.query_params.get("model", "")
        if not name:
            raise InvalidRequest("model must be a non-empty string", param="model")
        model = router.book.named(name)
        if model is None:
            message = f"model name={name} is not found"
            raise TaskError(ErrorCode.NOT_FOUND, message, param="model")
        message = f"model name={model.name} is not removable (not from cache)"
        raise InvalidRequest(message, param="model")


def chosen_by(service: Service, path: str) -> ModelManager:
    """Return the router; raises `TaskError` if this server's models are fixed."""
    if service.router is None:
        message = f"This server does not support {path}. Start it with `--models-dir`"
        raise TaskError(ErrorCode.NOT_SUPPORTED, f"{message} or `--models-preset`")
    return service.router


def _name(body: Mapping[str, Any]) -> str:
    name = body.get("model")
    return name if isinstance(name, str) else ""
