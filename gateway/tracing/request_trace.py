"""The spans of one request.

The request is a span of kind SERVER, whose parent is the client's span if it sent a `traceparent`.
Under it each task has a span after OpenTelemetry's conventions for generative AI; under that one
span for each wait in the queue and for each worker; and under a worker one for the prompt and one
for the answer, of the length that the worker measured. All are written at the end of the task, from
what the pool knows anyway: no token costs anything, and workers make no spans (as in vLLM, whose
front end writes the spans from the engine's times).
Source of names: https://github.com/open-telemetry/semantic-conventions-genai (gen-ai-spans.md).
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.util.types import AttributeValue

from gateway.metrics.ended_task import EndedTask
from gateway.pool.tasks.attempt import Attempt
from protocol.wire.messages import Generate

_Clock = Callable[[float], int]
"""Turns a time of the loop into nanoseconds since 1970."""
_PROVIDER = "llamapool"
_REASONS = {"eos": "stop", "word": "stop", "none": "stop", "limit": "length"}
_CANCELLED = "cancelled"


@dataclass(slots=True)
class RequestTrace:
    """The trace of one request."""

    tracer: Tracer
    span: Span
    _context: Context = field(init=False)

    def __post_init__(self) -> None:
        self._context = set_span_in_context(self.span)

    def ended(self, request: Generate, task: EndedTask, attempts: Sequence[Attempt]) -> None:
        """Write the spans of a task."""
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
        span.set_attributes(_of_answer(task, len(attempts)))
        failed = task.finish not in _REASONS and task.finish != _CANCELLED
        if failed:
            span.set_status(Status(StatusCode.ERROR, task.finish))
        self._parts(set_span_in_context(span), task, attempts, at)
        span.end(at(task.ended_at))

    def _parts(
        self, context: Context, task: EndedTask, attempts: Sequence[Attempt], at: _Clock
    ) -> None:
        """Write each wait and each worker."""
        waits_since = task.submitted_at
        for number, attempt in enumerate(attempts):
            if not number or attempt.assigned_at > waits_since:
                self._span("queue", context, at(waits_since), at(attempt.assigned_at))
            later = attempts[number + 1].assigned_at if number + 1 < len(attempts) else 0.0
            end = min(attempt.ended_at or task.ended_at, later or task.ended_at)
            self._worker(context, number, attempt, end, at)
            waits_since = end
        if not attempts:
            self._span("queue", context, at(waits_since), at(task.ended_at))

    def _worker(
        self, context: Context, number: int, attempt: Attempt, end: float, at: _Clock
    ) -> None:
        """Write what a worker did, up to `end`."""
        attributes: dict[str, AttributeValue] = {
            "llamapool.worker": attempt.worker,
            "llamapool.route": attempt.route,
            "llamapool.attempt": number,
        }
        name = f"worker {attempt.worker}"
        span = self.tracer.start_span(
            name, context, attributes=attributes, start_time=at(attempt.assigned_at)
        )
        inner = set_span_in_context(span)
        first = min(attempt.first_at, end)
        if attempt.started_at:
            read = first or end
            began = (
                max(attempt.assigned_at, read - attempt.reading_s)
                if attempt.reading_s
                else attempt.started_at
            )
            counts = {"llamapool.n_read": attempt.n_read, "llamapool.n_cached": attempt.n_reused}
            self._span("prompt", inner, at(min(began, read)), at(read), counts)
        if first:
            if not attempt.n_before:
                span.add_event("gen_ai.first_token", timestamp=at(first))
            written = min(end, first + attempt.writing_s) if attempt.writing_s else end
            counts = {"llamapool.n_predicted": attempt.n_predicted}
            self._span("decode", inner, at(first), at(written), counts)
        span.end(at(end))

    def _span(
        self,
        name: str,
        context: Context,
        start: int,
        end: int,
        attributes: dict[str, int] | None = None,
    ) -> None:
        span = self.tracer.start_span(name, context, attributes=attributes, start_time=start)
        span.end(max(start, end))


def _of_request(request: Generate, task: EndedTask) -> dict[str, AttributeValue]:
    params = request.params
    attributes: dict[str, AttributeValue] = {
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.request.model": task.model,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
    }
    if task.n_max > 0:
        attributes["gen_ai.request.max_tokens"] = task.n_max
    if task.key:
        attributes["llamapool.key"] = task.key
    return attributes


def _of_answer(task: EndedTask, n_workers: int) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "gen_ai.response.model": task.model,
        "gen_ai.usage.input_tokens": task.n_prompt,
        "gen_ai.usage.cache_read.input_tokens": task.n_cached,
        "gen_ai.usage.output_tokens": task.n_predicted,
        "llamapool.finish": task.finish,
        "llamapool.queue_s": task.queue_s,
        "llamapool.n_workers": n_workers,
    }
    if task.finish in _REASONS:
        attributes["gen_ai.response.finish_reasons"] = [_REASONS[task.finish]]
    elif task.finish != _CANCELLED:
        attributes["error.type"] = task.finish
    if task.first_at:
        attributes["gen_ai.response.time_to_first_chunk"] = task.first_at - task.submitted_at
    return attributes
