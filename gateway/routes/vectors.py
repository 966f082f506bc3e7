"""POST …/embeddings and …/rerank: answered by a worker, without a slot."""

import asyncio
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.body import read_json
from gateway.errors import json_response
from gateway.llamacpp.embedding import EmbeddingPlan, native_answer, plan_embeddings
from gateway.llamacpp.rerank import plan_rerank, rerank_answer
from gateway.openai.embeddings import embeddings_answer
from gateway.race import answered
from gateway.service import Service
from protocol.side_tasks import Embedded, Reranked

_LARGE = 256 * 1024
"""Vectors that take longer to write as JSON than other streams should wait."""


class Embedding:
    """One of /v1/embeddings, /embeddings and /embedding."""

    def __init__(
        self, service: Service, *, native: bool = False, object_of_one: bool = False
    ) -> None:
        self._service = service
        self._native = native
        self._object_of_one = object_of_one

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        body = await read_json(scope, receive, self._service.body_limits)
        card = await self._service.card(body.get("model"), scope, receive)
        plan = plan_embeddings(body, card, native=self._native)
        stream = self._service.pool.submit(plan.task, model=card.name, tenant=scope["tenant"])
        result = await answered(stream, receive, Embedded)
        if sum(map(len, result.vectors)) < _LARGE:
            response = self._respond(plan, result)
        else:
            response = await asyncio.to_thread(self._respond, plan, result)
        await response(scope, receive, send)

    def _respond(self, plan: EmbeddingPlan, result: Embedded) -> Response:
        answer: Any = (
            native_answer(plan, result, object_of_one=self._object_of_one)
            if plan.is_native
            else embeddings_answer(plan, result)
        )
        return json_response(answer)


class Reranking:
    """POST /rerank and its synonyms."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        body = await read_json(scope, receive, self._service.body_limits)
        card = await self._service.card(body.get("model"), scope, receive)
        plan = plan_rerank(body, card)
        stream = self._service.pool.submit(plan.task, model=card.name, tenant=scope["tenant"])
        result = await answered(stream, receive, Reranked)
        await json_response(rerank_answer(plan, result))(scope, receive, send)
