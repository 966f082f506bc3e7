"""What clients change for a whole model: GET and POST /lora-adapters, POST /props."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.llamacpp.lora import listed, read_scales
from gateway.http.disconnect import answered
from gateway.http.errors import json_response
from gateway.routes.service import Service
from protocol.errors import ErrorCode, TaskError
from protocol.wire.side_tasks import LoraListed, SetLora

_SUCCESS = {"success": True}


class LoraAdapters:
    """GET lists the adapters of a model, POST sets their scales in all its workers."""

    def __init__(self, service: Service, *, reads: bool) -> None:
        self._service = service
        self._answer = self._list if reads else self._set

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._answer(scope, receive, send)

    async def _list(self, scope: Scope, receive: Receive, send: Send) -> None:
        model = Request(scope).query_params.get("model")
        card = await self._service.card(model, scope, receive)
        task = SetLora(task_id=0)
        stream = self._service.pool.submit(task, model=card.name, tenant=scope["tenant"])
        answer = await answered(stream, receive, LoraListed)
        await json_response(listed(answer.adapters))(scope, receive, send)

    async def _set(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = await self._service.read(scope, receive, "Adapters")
        scales = read_scales(asked.body, asked.card)
        await self._service.pool.set_lora(asked.card.name, scales)
        await json_response(_SUCCESS)(scope, receive, send)


class GlobalProps:
    """POST /props: there is no property that could be changed, as in llama-server."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def set(self, request: Request) -> Response:
        """Answer one request."""
        if not self._service.config.props:
            message = "This server does not support changing global properties."
            raise TaskError(ErrorCode.NOT_SUPPORTED, f"{message} Start it with `--props`")
        return json_response(_SUCCESS)
