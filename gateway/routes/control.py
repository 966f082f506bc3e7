"""POST /v1/chat/completions/control: what a client can do to an answer while it runs."""

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.fields.options import read_text
from gateway.http.errors import json_response
from gateway.routes.service import Service
from protocol.errors import InvalidRequest
from protocol.wire.messages import Generate

_QUESTION = "end reasoning"
_UNKNOWN = "no active completion for this id"
_UNARMED = "reasoning control not enabled for this completion"


class ChatControlEndpoint:
    """Its one action ends the reasoning of an answer, as llama-server's does."""

    def __init__(self, service: Service) -> None:
        self._service = service
        service.siblings.respond(_QUESTION, self._answer)

    async def control(self, request: Request) -> Response:
        """Do what the body asks for."""
        body = await self._service.read_plain(request.scope, request.receive, "ChatControl")
        chat_id = read_text(body, "id")
        if not chat_id:
            raise InvalidRequest("missing completion id", param="id")
        if read_text(body, "action") != "reasoning_end":
            raise InvalidRequest("unknown control action", param="action")
        tenant = request.scope["tenant"]
        if self._service.live.find(tenant, chat_id):
            return json_response(await self._end_reasoning(tenant, chat_id))
        answers = await self._service.siblings.ask(_QUESTION, tenant=tenant, chat_id=chat_id)
        known = (answer for answer in answers.values() if answer and answer != _failure(_UNKNOWN))
        return json_response(next(known, _failure(_UNKNOWN)))

    async def _answer(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """End the reasoning of an answer for which another gateway was asked."""
        return await self._end_reasoning(fields["tenant"], fields["chat_id"])

    async def _end_reasoning(self, tenant: str, chat_id: str) -> dict[str, Any]:
        streams = self._service.live.find(tenant, chat_id)
        if not streams:
            return _failure(_UNKNOWN)
        tasks = [stream.request for stream in streams]
        if not all(isinstance(task, Generate) and task.params.reasoning_control for task in tasks):
            return _failure(_UNARMED)
        asked = (self._service.pool.calls.end_reasoning(stream) for stream in streams)
        return {"success": True} if any(await asyncio.gather(*asked)) else _failure(_UNKNOWN)


def _failure(message: str) -> dict[str, Any]:
    return {"success": False, "message": message}
