"""POST …/embeddings and …/rerank: answered by a worker, without a slot."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.fields.embedding import EmbeddingPlan, plan_embeddings
from gateway.api.llamacpp.embedding import native_answer
from gateway.api.llamacpp.rerank import RerankPlan, plan_rerank, rerank_answer
from gateway.api.openai.embeddings import embeddings_answer
from gateway.http.body import in_thread
from gateway.http.disconnect import answered
from gateway.http.errors import json_response
from gateway.routes.service import Service
from protocol.wire.facts import ModelCard
from protocol.wire.side_tasks import Embedded, Reranked

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
        asked = await self._service.read(scope, receive, "Embedding")
        card = asked.card
        plan = await asked.in_thread(self._plan, asked.body, card)
        stream = self._service.pool.submit(plan.task, model=card.name, tenant=scope["tenant"])
        result = await answered(stream, receive, Embedded)
        is_long = sum(map(len, result.vectors)) >= _LARGE
        response = await in_thread(is_long, self._respond, plan, result)
        await response(scope, receive, send)

    def _plan(self, body: Mapping[str, Any], card: ModelCard) -> EmbeddingPlan:
        return plan_embeddings(body, card, native=self._native)

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
        asked = await self._service.read(scope, receive, "Rerank")
        card = asked.card
        plan = await asked.in_thread(plan_rerank, asked.body, card)
        stream = self._service.pool.submit(plan.task, model=card.name, tenant=scope["tenant"])
        result = await answered(stream, receive, Reranked)
        response = await asked.in_thread(_ranked, plan, result)
        await response(scope, receive, send)


def _ranked(plan: RerankPlan, result: Reranked) -> Response:
    return json_response(rerank_answer(plan, result))
