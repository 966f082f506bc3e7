"""POST …/input_tokens and …/count_tokens: how long the prompt of a request would be."""

from collections.abc import Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from gateway.http.errors import json_response
from gateway.routes.generate import Planner
from gateway.routes.rendering import rendered
from gateway.routes.service import Service

OPENAI: Mapping[str, Any] = {"object": "response.input_tokens"}
ANTHROPIC: Mapping[str, Any] = {}
"""What each API says beside the count."""


class Counting:
    """Plans a request as its generating endpoint would, but has its prompt only rendered."""

    def __init__(
        self, service: Service, planner: Planner, kind: str, extra: Mapping[str, Any]
    ) -> None:
        self._service = service
        self._planner = planner
        self._kind = kind
        self._extra = extra

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        asked = await self._service.read(scope, receive, self._kind)
        result = await rendered(self._service, self._planner, asked, counts=True)
        answer = {"input_tokens": result.n_tokens, **self._extra}
        await json_response(answer)(scope, receive, send)
