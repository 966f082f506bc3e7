"""The generating endpoints: the only place where stream and non-stream part."""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send

from gateway.api.fields.prompt import is_several
from gateway.api.fields.structured import RESPONSE_FORMAT
from gateway.api.reply import RequestPlan, TaskOutcome, whole_calls
from gateway.http.answer_budget import AnswerReservation
from gateway.http.bodies.body import HELD, in_thread
from gateway.http.direct_write import DIRECT_WRITER
from gateway.http.disconnect import disconnected, guarded, together
from gateway.http.errors import json_response, note_cause, task_error_body
from gateway.http.event_stream import ChoiceWriter, EventStream
from gateway.http.origin.auth import require_admin
from gateway.http.origin.request_origin import read_origin
from gateway.http.route_headers import RouteNotice, route_headers
from gateway.http.waiting import in_time, send_places
from gateway.pool.routing.origin import Origin
from gateway.pool.tasks.deltas import size_of
from gateway.pool.tasks.stream import TaskStream
from gateway.routes.service import ReadRequest, Service
from protocol.errors import InvalidRequest, TaskError
from protocol.wire.facts import ModelCard, TokenProb
from protocol.wire.messages import Delta, Done, Started, ToolCallDelta

Planner = Callable[[Mapping[str, Any], ModelCard], RequestPlan]

_WITH_PROMPTS = ("Completion", "TextCompletion")
"""Kinds of bodies whose `prompt` may be several."""
_LONG = 20_000
"""Above this many tokens and alternatives, the answer is written in a thread."""


class Exchange(NamedTuple):
    """One request as ASGI hands it over, and where it comes from."""

    scope: Scope
    receive: Receive
    send: Send
    origin: Origin


class GenerationEndpoint:
    """An endpoint that plans tasks from a body and answers with what they generate."""

    def __init__(self, service: Service, planner: Planner, kind: str) -> None:
        self._service = service
        self._planner = planner
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        body = await self._service.read_body(scope, receive, self._kind)
        handler, keeper = partial(self._generate, body, scope), self._service.keeper
        if body.get("stream") is True and keeper.wants(scope):
            await keeper.keep(handler, scope, receive, send)
        else:
            await handler(receive, send)

    async def _generate(
        self,
        body: Any,
        scope: Scope,
        receive: Receive,
        send: Send,
        loaded: Callable[[], None] = lambda: None,
    ) -> None:
        """Answer a body that was read; calls `loaded` when its model is there."""
        asked = await self._service.with_model(body, scope, receive, self._kind)
        loaded()
        if self._service.config.verbose:
            asked.body.setdefault("verbose", True)
        exchange = Exchange(scope, receive, send, read_origin(scope, asked.body))
        await self.respond(await self.plan(asked, exchange), asked.card, exchange)

    async def plan(self, asked: ReadRequest, exchange: Exchange) -> RequestPlan:
        """Plan a request; raises `TaskError`."""
        if self._kind in _WITH_PROMPTS and is_several(prompts := asked.body.get("prompt")):
            # Before they are planned: for 8,192 of them that takes 70 ms.
            self._check_number(len(prompts), 1, asked.card, exchange.origin)
        return await asked.in_thread(self._planner, asked.body, asked.card)

    async def respond(self, plan: RequestPlan, card: ModelCard, exchange: Exchange) -> None:
        """Run a plan and answer with it."""
        scope, receive, _, origin = exchange
        self._check_number(len(plan.tasks), plan.tasks[0].params.n, card, origin)
        plan = await with_media(self._service, plan, scope, receive)
        if plan.system_prompt is not None:
            require_admin(scope)
            await self._service.pool.calls.set_system_prompt(card, plan.system_prompt)
        with fields_named(plan), self._submitted(plan, card, origin) as streams:
            if plan.stream:
                await self._stream(plan, card, streams, exchange)
            else:
                await self._whole(plan, card, streams, exchange)

    def _check_number(self, n: int, n_choices: int, card: ModelCard, origin: Origin) -> None:
        """Refuse a request whose tasks never fit into slots and queue: trying again cannot help."""
        pool = self._service.pool
        n_slots = max(pool.status.n_slots(card.name), card.n_slots)
        at_once = min(n_slots, origin.limits.concurrent or n_slots)
        limit = at_once + pool.dispatcher.limits.limit(card.name)
        if n <= limit:
            return
        if n == n_choices:
            message = f"Field 'n': Value must be between 1 <= value <= {limit}, but got {n}"
            raise InvalidRequest(message, param="n")
        each = f" with {n_choices} choices each" if n_choices > 1 else ""
        message = f"Field 'prompt': at most {limit} answers at once, but got {n // n_choices}{each}"
        raise InvalidRequest(message, param="prompt")

    @contextmanager
    def _submitted(
        self, plan: RequestPlan, card: ModelCard, origin: Origin
    ) -> Iterator[Sequence[TaskStream]]:
        streams: list[TaskStream] = []
        tenant = origin.hidden_tenant
        try:
            tasks = [replace(task, salt=origin.salt, tenant=tenant) for task in plan.tasks]
            together = self._service.pool.together(tasks, card.name, origin)
            for task in tasks:
                stream = self._service.pool.submit(
                    task,
                    model=card.name,
                    origin=origin,
                    is_whole=not plan.stream,
                    together=together,
                )
                streams.append(stream)
            with self._service.live.holding(origin.tenant, plan.chat_id, streams):
                yield streams
        finally:
            for stream in streams:
                stream.close()

    def _watchers(
        self, streams: Sequence[TaskStream], card: ModelCard, origin: Origin
    ) -> list[Coroutine[Any, Any, None]]:
        refuse = partial(self._service.pool.dispatcher.limits.overloaded, card.name)
        return in_time(streams, origin, refuse)

    async def _whole(
        self, plan: RequestPlan, card: ModelCard, streams: Sequence[TaskStream], exchange: Exchange
    ) -> None:
        scope, receive, send, origin = exchange
        watchers = self._watchers(streams, card, origin)
        with self._service.answers.held(scope["tenant"]) as held:
            collected = together(collect(stream, held) for stream in streams)
            outcomes = await guarded(collected, disconnected(receive), *watchers)
            headers = route_headers(streams)
            is_long = sum(map(_weight, outcomes)) > _LONG
            response = await in_thread(
                is_long, lambda: json_response(plan.reply.result(outcomes), 200, headers)
            )
            outcomes = []  # the client may read for long
            await response(scope, receive, send)

    async def _stream(
        self, plan: RequestPlan, card: ModelCard, streams: Sequence[TaskStream], exchange: Exchange
    ) -> None:
        config = self._service.config
        interval_s = plan.ping_interval_s
        interval_s = config.ping_interval_s if interval_s is None else interval_s
        writer = exchange.scope.get(DIRECT_WRITER)
        self._service.metrics.event_stream(is_direct=writer is not None)
        notice = RouteNotice(streams)
        events = EventStream(
            exchange.send,
            interval_s,
            min(config.limits.send_timeout_s, config.timeout_s),
            notice.headers,
            writer,
        )
        watchers = self._watchers(streams, card, exchange.origin)
        takes_comments = interval_s != 0 and not plan.reply.is_read_by_chunk
        if not watchers and takes_comments:
            watchers = [send_places(streams, events, self._service.pool.status.place)]
        told = notice if takes_comments else None
        writers = [
            ChoiceWriter(i, stream, plan.reply, events, told) for i, stream in enumerate(streams)
        ]
        try:
            writing = together(writer.run() for writer in writers)
            await guarded(writing, disconnected(exchange.receive), events.keep_alive(), *watchers)
        except TaskError as error:
            if not events.is_open:
                raise
            note_cause(error, exchange.scope)
            # The event tells clients that read it; the body without its end tells all the others.
            await events.write(plan.failure(task_error_body(error)))
            return
        await events.write(plan.reply.end())
        await events.finish()


def _weight(outcome: TaskOutcome) -> int:
    n_top = sum(len(prob.top) for prob in (*outcome.prompt, *outcome.probs))
    return len(outcome.tokens) + len(outcome.done.biases) + n_top


@contextmanager
def fields_named(plan: RequestPlan) -> Iterator[None]:
    """Let a worker's error about messages or a schema name the field that the client sent."""
    try:
        yield
    except TaskError as error:
        if error.param == "messages":
            error.param = plan.messages_field
        if error.param == RESPONSE_FORMAT:
            error.param = plan.schema_field
            head, field = f"Field '{RESPONSE_FORMAT}'", f"Field '{plan.schema_field}'"
            error.message = error.message.replace(head, field, 1)
        raise


async def with_media(
    service: Service, plan: RequestPlan, scope: Scope, receive: Receive
) -> RequestPlan:
    """Fetch what the plan only names, as long as its client waits for it and its time allows."""
    if not plan.links:
        return plan
    fill = partial(service.media.fill, plan, scope[HELD])
    return await service.fetched(fill, scope, receive)


async def collect(stream: TaskStream, held: AnswerReservation) -> TaskOutcome:
    """Gather one choice into one piece; raises `TaskError` if that is too large."""
    texts: list[str] = []
    reasoning: list[str] = []
    n_reasoning = 0
    calls: list[ToolCallDelta] = []
    tokens: list[int] = []
    probs: list[TokenProb] = []
    prompt: tuple[TokenProb, ...] = ()
    while True:
        message = await stream.receive()
        match message:
            case Delta():
                held.take(size_of(message))
                texts.append(message.text)
                reasoning.append(message.reasoning)
                n_reasoning = message.n_predicted if message.reasoning else n_reasoning
                calls += message.tool_calls
                tokens += message.tokens
                probs += message.probs
                prompt = prompt or message.prompt
            case Started():  # also when another worker restarts the answer
                texts, reasoning, calls, tokens, probs = [], [], [], [], []
                n_reasoning, prompt = 0, ()
            case Done():
                return TaskOutcome(
                    text="".join(texts),
                    tokens=tuple(tokens),
                    probs=tuple(probs[: max(0, len(probs) - message.n_stop_tokens)]),
                    done=message,
                    reasoning="".join(reasoning),
                    n_reasoning=n_reasoning,
                    tool_calls=whole_calls(calls),
                    prompt=prompt,
                )
