"""GET and POST /lora-adapters, POST /props: settings that clients change for a whole model."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.llamacpp.lora import listed, read_scales
from gateway.http.errors import json_response, success_response
from gateway.routes.service import Service
from protocol.errors import not_started
from protocol.wire.side_tasks import LoraListed, SetLora


class TuningEndpoints:
    """The scales of a model's adapters, and properties of the server."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list_adapters(self, request: Request) -> Response:
        """Answer with the adapters of a model."""
        scope, receive = request.scope, request.receive
        card = await self._service.card(request.query_params.get("model"), scope, receive)
        answer = await self._service.run(SetLora(), card, scope, receive, LoraListed)
        return json_response(listed(answer.adapters))

    async def set_adapters(self, request: Request) -> Response:
        """Set the scales of adapters in all workers of a model."""
        asked = await self._service.read(request.scope, request.receive, "Adapters")
        scales = read_scales(asked.body, asked.card)
        await self._service.pool.calls.set_lora(asked.card.name, scales)
        return success_response()

    async def set_props(self, request: Request) -> Response:
        """Accept any body: as in llama-server there is no property that could be changed."""
        if not self._service.config.props:
            raise not_started("changing global properties", "`--props`")
        return success_response()
