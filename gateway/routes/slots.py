"""POST /slots/{id_slot}: save, restore or erase a slot of any worker."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.llamacpp.slots import (
    needs_filename,
    no_such_slot,
    read_action,
    read_filename,
    read_slot_id,
    slot_acted,
)
from gateway.http.disconnect import answered
from gateway.http.errors import json_response
from gateway.http.origin.request_origin import read_origin
from gateway.pool.requests.record import REQUEST
from gateway.routes.service import Service
from protocol.errors import not_started
from protocol.wire.facts import ModelCard
from protocol.wire.side_tasks import SlotActed, SlotAction


class SlotEndpoints:
    """Acts on slots by the numbers that GET /slots shows."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def act(self, request: Request) -> Response:
        """Save, restore or erase one slot."""
        scope, receive = request.scope, request.receive
        if self._service.models is None:
            _check_offered(*self._service.ready_cards())
        slot_id = read_slot_id(request.path_params["id_slot"])
        action = read_action(request.query_params.get("action"))
        body = await self._body(request, action)
        filename = read_filename(body) if needs_filename(action) else ""
        origin = read_origin(scope, body)
        asked = body.get("model") or request.query_params.get("model")
        model = asked or self._service.pool.dispatcher.slots.model_of(slot_id)
        if not model and self._service.models is None:
            raise no_such_slot()
        card = await self._service.card(model, scope, receive)  # keeps it loaded meanwhile
        _check_offered(card)
        owner = scope.get("namespace", "")
        task = SlotAction(action=action, filename=filename, owner=owner, salt=origin.salt)
        stream = self._service.pool.act_on_slot(
            task, slot_id, model=card.name, tenant=scope["tenant"], record=scope.get(REQUEST)
        )
        acted = await answered(stream, receive, SlotActed)
        return json_response(slot_acted(action, slot_id, filename, acted))

    async def _body(self, request: Request, action: str) -> dict[str, Any]:
        """Read the body of an action; erasing needs none, except to name a model to load."""
        may_name = self._service.models is not None and request.headers.get("content-length", "0")
        if needs_filename(action) or (may_name and may_name != "0"):
            return await self._service.read_plain(request.scope, request.receive, "SlotAction")
        return {}


def _check_offered(*cards: ModelCard) -> None:
    """Raise `TaskError` if none of the models saves slots."""
    if not any(card.saves_slots for card in cards):
        raise not_started("slots action", "`--slot-save-path`")
