"""POST /completions: native, or as the wrapper of 2023 answered when it was asked for tokens."""

from dataclasses import replace

from starlette.types import Receive, Scope, Send

from gateway.body import read_json
from gateway.llamacpp import completion, wrapper
from gateway.llamacpp.options import read_flag
from gateway.origin import read_origin
from gateway.race import answered
from gateway.reply import Plan
from gateway.routes.generate import Exchange, Generation
from gateway.service import Service
from protocol.facts import ModelCard
from protocol.messages import Tokenize, Tokenized


class WrappedCompletion:
    """Chooses the shape by `tokenize`, as `api_like_OAI.py` did."""

    def __init__(self, service: Service, native: Generation) -> None:
        self._service = service
        self._native = native

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        body = await read_json(scope, receive, self._service.body_limits)
        exchange = Exchange(scope, receive, send, read_origin(scope, body))
        card = await self._service.card(body.get("model"), scope, receive)
        if not read_flag(body, "tokenize"):
            await self._native.respond(completion.plan(body, card), card, exchange)
            return
        plan = wrapper.plan(body, card)
        if not plan.stream:
            tokens = await self._tokens(plan, card, exchange)
            plan = replace(plan, reply=wrapper.WrapperReply(tokens))
        await self._native.respond(plan, card, exchange)

    async def _tokens(self, plan: Plan, card: ModelCard, exchange: Exchange) -> tuple[int, ...]:
        """Tokenize the prompt as /tokenize does: without BOS."""
        task = Tokenize(task_id=0, content=plan.tasks[0].prompt or "")
        tenant = exchange.scope["tenant"]
        stream = self._service.pool.submit(task, model=card.name, tenant=tenant)
        return (await answered(stream, exchange.receive, Tokenized)).tokens
