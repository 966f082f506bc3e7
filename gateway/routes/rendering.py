"""POST /apply-template: the prompt that a chat would be, without running it.

What counts the tokens of such a prompt (`gateway/routes/counting.py`) asks for it here too.
"""

from starlette.types import Receive, Scope, Send

from gateway.http.disconnect import answered
from gateway.http.errors import json_response
from gateway.routes.generate import Planner, with_media
from gateway.routes.service import ReadRequest, Service
from protocol.errors import InvalidRequest
from protocol.wire.side_tasks import Render, Rendered


class Rendering:
    """Plans a request as its generating endpoint would, and answers with the prompt."""

    def __init__(self, service: Service, planner: Planner, kind: str) -> None:
        self._service = service
        self._planner = planner
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        asked = await self._service.read(scope, receive, self._kind)
        result = await rendered(self._service, self._planner, asked)
        await json_response({"prompt": result.prompt})(scope, receive, send)


async def rendered(
    service: Service, planner: Planner, asked: ReadRequest, *, counts: bool = False
) -> Rendered:
    """Have a worker write the prompt of the request's first choice; media matter to a count."""
    plan = await asked.in_thread(planner, asked.body, asked.card)
    if counts:
        plan = await with_media(service, plan, asked.receive)
    task = plan.tasks[0]
    if task.chat is None:
        raise InvalidRequest("'messages' is required", param="messages")
    render = Render(task_id=0, chat=task.chat, media=task.media if counts else ())
    stream = service.pool.submit(render, model=asked.card.name, tenant=asked.scope["tenant"])
    return await answered(stream, asked.receive, Rendered)
