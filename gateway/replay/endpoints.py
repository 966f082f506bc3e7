"""`/v1/stream` and `/v1/streams/lookup`: reads kept streams again, ends them, lists them."""

import re
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.fields.bounds import bounds_of, check_body
from gateway.http.bodies.body import BodyLimits, read_value
from gateway.http.disconnect import disconnected, guarded
from gateway.http.errors import json_response
from gateway.replay.keeping import StreamKeeper
from gateway.replay.session import StreamSession
from gateway.replay.sessions import StreamSessions
from gateway.siblings.siblings import Siblings
from protocol.errors import ErrorCode, InvalidRequest, TaskError

_QUESTION = "end stream"
_UNKNOWN = "Stream not found or expired"
_ELSEWHERE = "; of several gateways only the one that began it keeps it"
_OFFSET = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*([0-9]{1,21})")
_HEAD = {"content-type": "text/event-stream"}
_MAX_OFFSET = 2**64 - 1
"""Largest unsigned number of 64 bits, as in llama-server."""


class StreamReplay:
    """GET /v1/stream: the bytes of a stream from an offset on, then those that come.

    It sends what was sent before, so it is an ASGI application.
    """

    def __init__(self, keeper: StreamKeeper, siblings: Siblings) -> None:
        self._keeper = keeper
        self._siblings = siblings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one reader."""
        request = Request(scope)
        session = self._find(scope["key"], _conversation_id(request))
        offset = read_offset(request.query_params.get("from", ""))
        if offset < session.n_dropped:
            raise InvalidRequest("Stream offset lost, please restart")
        if scope["method"] == "HEAD":
            await Response(headers=dict(_HEAD))(scope, receive, send)
            return
        work = self._keeper.send_to(send, session, offset)
        await guarded(work, disconnected(receive))

    def _find(self, key: str, conversation_id: str) -> StreamSession:
        session = self._keeper.sessions.find(key, conversation_id)
        if session is None:
            message = _UNKNOWN + _ELSEWHERE if self._siblings.has_others else _UNKNOWN
            raise TaskError(ErrorCode.NOT_FOUND, message)
        if session.is_loading:
            raise TaskError(ErrorCode.UNAVAILABLE, "Stream owner model is loading, retry later")
        return session


class StreamEndpoints:
    """What else can be done with kept streams."""

    def __init__(self, sessions: StreamSessions, limits: BodyLimits, siblings: Siblings) -> None:
        self._sessions = sessions
        self._limits = limits
        self._siblings = siblings
        siblings.respond(_QUESTION, self._end)

    async def end(self, request: Request) -> Response:
        """End a stream at any gateway of this host; succeeds also if there is none."""
        conversation_id, key = _conversation_id(request), request.scope["key"]
        if not self._sessions.end(key, conversation_id):
            await self._siblings.ask(_QUESTION, key=key, conversation_id=conversation_id)
        return Response(status_code=204, media_type="application/json")

    async def lookup(self, request: Request) -> Response:
        """List the kept streams of the ids in the body."""
        scope, receive = request.scope, request.receive
        try:
            body = await read_value(scope, receive, self._limits)
        except InvalidRequest as error:
            fields = {"message": f"invalid body: {error.message}", "type": "invalid_request_error"}
            return json_response({"error": fields}, 400)
        ids: list[str] = []
        if isinstance(body, dict):
            check_body("StreamLookup", body, bounds_of(None, self._limits.fields))
            ids = _texts(body.get("conversation_ids"))
        return json_response(
            [_row(session) for session in self._sessions.lookup(scope["key"], ids)]
        )

    async def _end(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """End a stream for which another gateway was asked."""
        return {"ended": self._sessions.end(fields["key"], fields["conversation_id"])}


def read_offset(text: str) -> int:
    """Read an offset as C++ does, which llama-server leaves it to; raises `InvalidRequest`.

    What follows the digits is ignored, and a negative number counts from 2**64.
    """
    if not text:
        return 0
    found = _OFFSET.match(text)
    if found is None or (offset := int(found[2])) > _MAX_OFFSET:
        raise InvalidRequest("Invalid 'from' offset")
    return -offset % (_MAX_OFFSET + 1) if found[1] == "-" else offset


def _conversation_id(request: Request) -> str:
    conversation_id = request.query_params.get("conv_id", "")
    if not conversation_id:
        raise InvalidRequest("Missing conversation id in path")
    return conversation_id


def _texts(value: Any) -> list[str]:
    """Return the non-empty strings of a list; anything else is ignored."""
    return (
        [item for item in value if item and isinstance(item, str)]
        if isinstance(value, list)
        else []
    )


def _row(session: StreamSession) -> dict[str, Any]:
    return {
        "conversation_id": session.conversation_id,
        "is_done": session.is_over,
        "total_bytes": session.total_bytes,
        "started_at": session.started_at,
        "completed_at": session.completed_at,
    }
