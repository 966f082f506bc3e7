"""POST /apply-template: the prompt that a chat would be, without running it.

What counts the tokens of such a prompt (`gateway/routes/counting.py`) asks for it here too.
"""

from starlette.types import Receive, Scope, Send

from gateway.body import read_json
from gateway.errors import json_response
from gateway.race import answered
from gateway.routes.generate import Planner, with_media
from gateway.service import Service
from protocol.errors import InvalidRequest
from protocol.side_tasks import Render, Rendered


class Rendering:
    """Plans a request as its generating endpoint would, and answers with the prompt."""

    def __init__(self, service: Service, planner: Planner) -> None:
        self._service = service
        self._planner = planner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        result = await rendered(self._service, self._planner, scope, receive)
        await json_response({"prompt": result.prompt})(scope, receive, send)


async def rendered(
    service: Service, planner: Planner, scope: Scope, receive: Receive, *, counts: bool = False
) -> Rendered:
    """Have a worker write the prompt of the request's first choice; media matter to a count."""
    body = await read_json(scope, receive, service.body_limits)
    card = await service.card(body.get("model"), scope, receive)
    plan = planner(body, card)
    if counts:
        plan = await with_media(service, plan, receive)
    task = plan.tasks[0]
    if task.chat is None:
        raise InvalidRequest("'messages' is required", param="messages")
    render = Render(task_id=0, chat=task.chat, media=task.media if counts else ())
    stream = service.pool.submit(render, model=card.name, tenant=scope["tenant"])
    return await answered(stream, receive, Rendered)
