"""POST …/embeddings and …/rerank: answered by a worker, without a slot."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.fields.embedding import EmbeddingPlan, joined, plan_embeddings
from gateway.api.llamacpp.embedding import native_answer
from gateway.api.llamacpp.rerank import plan_rerank, rerank_answer
from gateway.api.openai.embeddings import embeddings_answer
from gateway.http.bodies.body import HELD, BodyReservation, in_thread
from gateway.http.disconnect import all_answered
from gateway.http.errors import json_response
from gateway.http.origin.request_origin import plain_origin
from gateway.http.origin.urgency import read_urgency
from gateway.http.waiting import in_time
from gateway.pool.tasks.stream import TaskStream
from gateway.routes.service import ReadRequest, Service
from protocol.wire.side_tasks import Embed, Embedded, Rerank, Reranked

T = TypeVar("T", Embedded, Reranked)

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
            fill = partial(self._filled, plan, request.scope[HELD])
            plan = await self._service.fetched(fill, request.scope, request.receive)
        result = joined(await self._answers(plan.tasks, asked, Embedded))
        is_long = sum(map(len, result.vectors)) >= _LARGE
        return await in_thread(is_long, lambda: json_response(write(plan, result)))

    async def _filled(self, plan: EmbeddingPlan, held: BodyReservation) -> EmbeddingPlan:
        """Fetch what the plan only names."""
        load = self._service.media.load
        loaded = [
            await load(links, task.media, held)
            for task, links in zip(plan.tasks, plan.links, strict=True)
        ]
        tasks = zip(plan.tasks, loaded, strict=True)
        return replace(plan, tasks=tuple(replace(task, media=media) for task, media in tasks))

    async def _answers(
        self, tasks: Sequence[Embed | Rerank], asked: ReadRequest, kind: type[T]
    ) -> list[T]:
        """Submit tasks and wait for their answers; if one is refused, the others are closed."""
        pool, name = self._service.pool, asked.card.name
        origin = plain_origin(asked.scope, read_urgency(asked.scope, asked.body))
        together = pool.together(tasks, name, origin)
        with ExitStack() as opened:
            streams = list[TaskStream]()
            for task in tasks:
                stream = pool.submit(task, model=name, origin=origin, together=together)
                opened.callback(stream.close)
                streams.append(stream)
            watchers = in_time(streams, origin, partial(pool.dispatcher.limits.overloaded, name))
            return await all_answered(streams, asked.receive, kind, *watchers)

    async def rerank(self, request: Request) -> Response:
        """Answer with documents, the best for a query first."""
        asked = await self._service.read(request.scope, request.receive, "Rerank")
        plan = await asked.in_thread(plan_rerank, asked.body, asked.card)
        (result,) = await self._answers([plan.task], asked, Reranked)
        return await asked.in_thread(lambda: json_response(rerank_answer(plan, result)))


def _write_openai(plan: EmbeddingPlan, result: Embedded) -> Any:
    if plan.is_native:
        return native_answer(plan, result, object_of_one=False)
    return embeddings_answer(plan, result)
