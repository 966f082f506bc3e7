"""POST /slots/{id_slot}: save, restore or erase a slot of any worker."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.llamacpp.slots import (
    needs_filename,
    read_action,
    read_filename,
    read_slot_id,
    slot_acted,
)
from gateway.http.disconnect import answered
from gateway.http.errors import json_response
from gateway.http.origin.request_origin import read_origin
from gateway.pool.requests.record import REQUEST
from gateway.routes.service import Service, check_allowed
from protocol.errors import not_started
from protocol.wire.side_tasks import SlotActed, SlotAction


class SlotEndpoints:
    """Acts on slots by the numbers that GET /slots shows."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def act(self, request: Request) -> Response:
        """Save, restore or erase one slot."""
        scope, receive = request.scope, request.receive
        if not any(card.saves_slots for card in self._service.ready_cards()):
            raise not_started("slots action", "`--slot-save-path`")
        slot_id = read_slot_id(request.path_params["id_slot"])
        action = read_action(request.query_params.get("action"))
        filename, body = "", dict[str, Any]()
        if needs_filename(action):
            body = await self._service.read_plain(scope, receive, "SlotAction")
            filename = read_filename(body)
        origin = read_origin(scope, body)
        model = self._service.pool.dispatcher.slots.model_of(slot_id)
        for card in self._service.ready_cards():
            if card.name == model:
                check_allowed(scope, model, card.name, *card.aliases)
        if model and self._service.models is not None:  # keeps it loaded meanwhile
            await self._service.card(model, scope, receive)
        owner = scope.get("namespace", "")
        task = SlotAction(action=action, filename=filename, owner=owner, salt=origin.salt)
        stream = self._service.pool.act_on_slot(
            task, slot_id, tenant=scope["tenant"], record=scope.get(REQUEST)
        )
        acted = await answered(stream, receive, SlotActed)
        return json_response(slot_acted(action, slot_id, filename, acted))
