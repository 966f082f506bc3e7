"""The spans of one request.

The request is a span of kind SERVER, whose parent is the client's span if it sent a `traceparent`.
Under it each task has a span after OpenTelemetry's conventions for generative AI, and under that
one span for each wait in the queue and for each worker. They are written at the end of the task,
from the times that the pool keeps anyway: nothing is done for a token.
Source of names: https://github.com/open-telemetry/semantic-conventions-genai (gen-ai-spans.md).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.util.types import AttributeValue

from gateway.metrics.ended_task import EndedTask
from protocol.wire.messages import Generate

_Clock = Callable[[float], int]
"""Turns a time of the loop into nanoseconds since 1970."""
_PROVIDER = "llamapool"
_REASONS = {"eos": "stop", "word": "stop", "none": "stop", "limit": "length"}
_CANCELLED = "cancelled"


@dataclass(slots=True)
class _Visit:
    """One worker that had a task, and since when."""

    worker: str
    route: str
    since: float


@dataclass(slots=True)
class RequestTrace:
    """The trace of one request."""

    tracer: Tracer
    span: Span
    _context: Context = field(init=False)
    _visits: dict[int, list[_Visit]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._context = set_span_in_context(self.span)

    def assigned(self, task_id: int, worker: str, route: str, now: float) -> None:
        """Note that a worker of this name has the task now."""
        self._visits.setdefault(task_id, []).append(_Visit(worker, route, now))

    def ended(self, task_id: int, request: Generate, task: EndedTask) -> None:
        """Write the spans of a task."""
        visits = self._visits.pop(task_id, [])
        if not self.span.is_recording():
            return
        epoch_s = time.time() - asyncio.get_running_loop().time()

        def at(loop_s: float) -> int:
            return int((epoch_s + loop_s) * 1e9)

        operation = "chat" if request.chat is not None else "text_completion"
        span = self.tracer.start_span(
            f"{operation} {task.model}",
            self._context,
            SpanKind.INTERNAL,
            {"gen_ai.operation.name": operation, **_of_request(request, task)},
            start_time=at(task.submitted_at),
        )
        if task.first_at:
            span.add_event("gen_ai.first_token", timestamp=at(task.first_at))
        span.set_attributes(_of_answer(task, visits))
        failed = task.finish not in _REASONS and task.finish != _CANCELLED
        if failed:
            span.set_status(Status(StatusCode.ERROR, task.finish))
        context = set_span_in_context(span)
        self._parts(context, task, visits, at)
        span.end(at(task.ended_at))

    def _parts(self, context: Context, task: EndedTask, visits: list[_Visit], at: _Clock) -> None:
        """Write the wait and each worker."""
        first = visits[0].since if visits else task.ended_at
        queue = self.tracer.start_span("queue", context, start_time=at(task.submitted_at))
        queue.end(at(first))
        ends = [one.since for one in visits[1:]] + [task.ended_at]
        for number, (visit, end) in enumerate(zip(visits, ends, strict=True)):
            attributes: dict[str, AttributeValue] = {
                "llamapool.worker": visit.worker,
                "llamapool.route": visit.route,
                "llamapool.attempt": number,
            }
            span = self.tracer.start_span(
                f"worker {visit.worker}", context, attributes=attributes, start_time=at(visit.since)
            )
            if visit.since <= task.first_at <= end:
                span.add_event("gen_ai.first_token", timestamp=at(task.first_at))
            span.end(at(end))


def _of_request(request: Generate, task: EndedTask) -> dict[str, AttributeValue]:
    params = request.params
    told: dict[str, AttributeValue] = {
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.request.model": task.model,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
    }
    if task.n_most > 0:
        told["gen_ai.request.max_tokens"] = task.n_most
    if task.key:
        told["llamapool.key"] = task.key
    return told


def _of_answer(task: EndedTask, visits: list[_Visit]) -> dict[str, AttributeValue]:
    told: dict[str, AttributeValue] = {
        "gen_ai.response.model": task.model,
        "gen_ai.usage.input_tokens": task.n_prompt,
        "gen_ai.usage.cache_read.input_tokens": task.n_cached,
        "gen_ai.usage.output_tokens": task.n_predicted,
        "llamapool.finish": task.finish,
        "llamapool.queue_s": task.queue_s,
        "llamapool.n_workers": len(visits),
    }
    if task.finish in _REASONS:
        told["gen_ai.response.finish_reasons"] = [_REASONS[task.finish]]
    elif task.finish != _CANCELLED:
        told["error.type"] = task.finish
    if task.first_at:
        told["gen_ai.response.time_to_first_chunk"] = task.first_at - task.submitted_at
    return told
