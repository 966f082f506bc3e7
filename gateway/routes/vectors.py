"""POST …/embeddings and …/rerank: answered by a worker, without a slot."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.fields.embedding import EmbeddingPlan, joined, plan_embeddings
from gateway.api.llamacpp.embedding import native_answer
from gateway.api.llamacpp.rerank import plan_rerank, rerank_answer
from gateway.api.openai.embeddings import embeddings_answer
from gateway.http.bodies.body import in_thread
from gateway.http.disconnect import all_answered, disconnected, guarded
from gateway.http.errors import json_response
from gateway.http.origin.request_origin import plain_origin
from gateway.pool.tasks.stream import TaskStream
from gateway.routes.service import Service
from protocol.wire.facts import ModelCard
from protocol.wire.side_tasks import Embedded, Reranked

_LARGE = 256 * 1024
"""Bytes of vectors above which the answer is written in a thread: other streams would wait."""

_Writer = Callable[[EmbeddingPlan, Embedded], Any]


class VectorEndpoints:
    """Embeddings in the shapes of three servers, and ranking."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def openai(self, request: Request) -> Response:
        """Answer as OpenAI does, unless the text is in llama-server's `content`."""
        return await self._embed(request, _write_openai, native=False)

    async def native(self, request: Request) -> Response:
        """Answer as llama-server does: an array."""
        write = partial(native_answer, object_of_one=False)
        return await self._embed(request, write, native=True)

    async def native_of_2024(self, request: Request) -> Response:
        """Answer as the server of 2024 did: one text gets an object."""
        write = partial(native_answer, object_of_one=True)
        return await self._embed(request, write, native=True)

    async def _embed(self, request: Request, write: _Writer, *, native: bool) -> Response:
        asked = await self._service.read(request.scope, request.receive, "Embedding")
        read = partial(plan_embeddings, native=native)
        plan = await asked.in_thread(read, asked.body, asked.card)
        if any(plan.links):
            plan = await guarded(self._filled(plan), disconnected(request.receive))
        with ExitStack() as opened:
            streams = self._submit(plan, asked.card, request, opened)
            result = joined(await all_answered(streams, request.receive, Embedded))
        is_long = sum(map(len, result.vectors)) >= _LARGE
        return await in_thread(is_long, lambda: json_response(write(plan, result)))

    async def _filled(self, plan: EmbeddingPlan) -> EmbeddingPlan:
        """Fetch what the plan only names."""
        load = self._service.media.load
        loaded = [
            await load(links, task.media)
            for task, links in zip(plan.tasks, plan.links, strict=True)
        ]
        tasks = zip(plan.tasks, loaded, strict=True)
        return replace(plan, tasks=tuple(replace(task, media=media) for task, media in tasks))

    def _submit(
        self, plan: EmbeddingPlan, card: ModelCard, request: Request, opened: ExitStack
    ) -> list[TaskStream]:
        """Submit the tasks of a plan; if one is refused, those before it are closed."""
        origin, streams = plain_origin(request.scope), list[TaskStream]()
        pool = self._service.pool
        together = pool.together(plan.tasks, card.name, origin)
        for task in plan.tasks:
            stream = pool.submit(task, model=card.name, origin=origin, together=together)
            opened.callback(stream.close)
            streams.append(stream)
        return streams

    async def rerank(self, request: Request) -> Response:
        """Answer with documents, the best for a query first."""
        scope, receive = request.scope, request.receive
        asked = await self._service.read(scope, receive, "Rerank")
        plan = await asked.in_thread(plan_rerank, asked.body, asked.card)
        result = await self._service.run(plan.task, asked.card, scope, receive, Reranked)
        return await asked.in_thread(lambda: json_response(rerank_answer(plan, result)))


def _write_openai(plan: EmbeddingPlan, result: Embedded) -> Any:
    if plan.is_native:
        return native_answer(plan, result, object_of_one=False)
    return embeddings_answer(plan, result)
