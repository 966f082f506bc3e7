"""POST /apply-template, …/input_tokens, …/count_tokens: the prompt of a chat that is not run."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.http.errors import json_response
from gateway.routes.generate import Planner, fields_named, with_media
from gateway.routes.service import Service
from protocol.errors import InvalidRequest
from protocol.wire.side_tasks import Render, Rendered


class PromptEndpoints:
    """Plans a body as the generating endpoint of its dialect does, and has its prompt rendered."""

    def __init__(self, service: Service, planner: Planner, kind: str) -> None:
        self._service = service
        self._planner = planner
        self._kind = kind

    async def render(self, request: Request) -> Response:
        """Answer with the prompt."""
        rendered = await self._render(request, counts=False)
        return json_response({"prompt": rendered.prompt})

    async def count(self, request: Request) -> Response:
        """Answer with the number of tokens, as Anthropic's API does."""
        rendered = await self._render(request, counts=True)
        return json_response({"input_tokens": rendered.n_tokens})

    async def count_typed(self, request: Request) -> Response:
        """Answer with the number of tokens, as OpenAI's API does."""
        rendered = await self._render(request, counts=True)
        answer = {"input_tokens": rendered.n_tokens, "object": "response.input_tokens"}
        return json_response(answer)

    async def _render(self, request: Request, *, counts: bool) -> Rendered:
        """Have a worker render the prompt of the first choice; a count includes the media."""
        scope, receive = request.scope, request.receive
        asked = await self._service.read(scope, receive, self._kind)
        plan = await asked.in_thread(self._planner, asked.body, asked.card)
        if counts:
            plan = await with_media(self._service, plan, scope, receive)
        task = plan.tasks[0]
        if task.chat is None:
            raise InvalidRequest("'messages' is required", param="messages")
        media = task.media if counts else ()
        render = Render(chat=task.chat, media=media, media_fields=task.media_fields)
        with fields_named(plan):
            return await self._service.run(render, asked.card, scope, receive, Rendered)
