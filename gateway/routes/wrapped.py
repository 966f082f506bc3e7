"""Generation with `tokenize`: the answers of `api_like_OAI.py`, with the tokens of the prompt."""

from array import array
from collections.abc import Sequence
from dataclasses import replace

from gateway.api.fields.options import read_flag
from gateway.api.llamacpp import wrapper
from gateway.api.reply import RequestPlan
from gateway.routes.generate import Exchange, GenerationEndpoint
from gateway.routes.service import ReadRequest
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Tokenize, Tokenized
from protocol.wire.side_tasks import Render, Rendered


class WrappedGeneration(GenerationEndpoint):
    """Answers as `api_like_OAI.py` did where the body has `tokenize`."""

    async def plan(self, asked: ReadRequest, exchange: Exchange) -> RequestPlan:
        """Plan a request; its prompt is tokenized if `tokenize` is true."""
        if not read_flag(asked.body, "tokenize"):
            return await super().plan(asked, exchange)
        native = {key: value for key, value in asked.body.items() if key != "tokenize"}
        plan = wrapper.wrapped(await super().plan(asked._replace(body=native), exchange))
        if plan.stream:
            return plan
        tokens = await self._tokens(plan, asked.card, exchange)
        return replace(plan, reply=wrapper.reply_to(plan.tasks[0], tokens))

    async def _tokens(
        self, plan: RequestPlan, card: ModelCard, exchange: Exchange
    ) -> Sequence[int]:
        """Tokenize the prompt as /tokenize does: without BOS."""
        (task,) = plan.tasks
        run, scope, receive = self._service.run, exchange.scope, exchange.receive
        content = task.prompt or ""
        if task.chat is not None:
            content = (await run(Render(chat=task.chat), card, scope, receive, Rendered)).prompt
        answer = await run(Tokenize(content=content), card, scope, receive, Tokenized)
        return array("i", answer.tokens)
