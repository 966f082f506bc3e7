"""What a body asks for (`RequestPlan`) and how its answer is spoken (`ResponseFormatter`).

A reply is pure: messages of the wire in, bytes or JSON values out. One of them serves one request
and numbers its choices as the plan numbers its tasks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import orjson

from gateway.api.fields.media_links import MediaLink
from gateway.http.sse import event
from protocol.wire.facts import SystemPrompt, TokenProb
from protocol.wire.messages import Delta, Done, Generate, Progress, Started, ToolCallDelta
from protocol.wire.sampling import UNSET_SEED, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """Everything one task produced, for an answer in one piece."""

    text: str
    tokens: tuple[int, ...]
    probs: tuple[TokenProb, ...]
    done: Done
    reasoning: str = ""
    n_reasoning: int = 0
    """Tokens up to the last thought."""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    """Each call in one piece."""
    prompt: tuple[TokenProb, ...] = ()
    """The tokens of the prompt, if they were asked for."""


class ResponseFormatter(Protocol):
    """Speaks one API: frames of a stream, or one body."""

    is_read_by_chunk: ClassVar[bool]
    """Whether old clients take each chunk of a stream for one event, as the documents' sample."""

    def started(self, index: int, message: Started) -> None:
        """Note where the choice runs; the first frame waits for something to say."""
        ...

    def progress(self, index: int, message: Progress) -> bytes:
        """Frame how far the prompt is read."""
        ...

    def delta(self, index: int, message: Delta) -> bytes:
        """Frame what was added; may be empty."""
        ...

    def done(self, index: int, message: Done) -> bytes:
        """Frame the end of one choice."""
        ...

    def end(self) -> bytes:
        """Frame what follows the last choice; may be empty."""
        ...

    def result(self, outcomes: Sequence[TaskOutcome]) -> Any:
        """Return the JSON value of an answer in one piece."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseOptions:
    """How the client wants its OpenAI answer, beside the sampling."""

    include_usage: bool = False
    verbose: bool = False
    n_top: int = 0
    """Rivals shown for each token; -1 is no log probabilities at all."""
    names_functions: bool = False
    """Calls are written as `function_call`, in OpenAI's shape of 2023."""


def error_event(body: Mapping[str, Any]) -> bytes:
    """Frame an error in the middle of a stream, as OpenAI's clients read it."""
    return event(orjson.dumps(body))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPlan:
    """The tasks of a request, one a choice, and how to answer."""

    tasks: tuple[Generate, ...]
    reply: ResponseFormatter
    stream: bool
    chat_id: str = ""
    """By which the client may speak of the answer while it runs."""
    ping_interval_s: float | None = None
    """What the client asked for; 0 is never, None the server's own."""
    system_prompt: SystemPrompt | None = None
    """To be set in all workers of the model before the tasks run."""
    links: tuple[MediaLink, ...] = ()
    """Media of all tasks that are still to be fetched."""
    failure: Callable[[Mapping[str, Any]], bytes] = error_event
    """Frames the body of an error that comes after the first byte."""


def fan_out(
    prompts: Sequence[Generate], params: SamplingParams
) -> tuple[tuple[Generate, ...], tuple[SamplingParams, ...]]:
    """Repeat each prompt `n` times; returns the tasks and the parameters of each."""
    choices = choices_of(params)
    tasks = tuple(replace(prompt, params=one) for prompt in prompts for one in choices)
    return tasks, tuple(task.params for task in tasks)


def choices_of(params: SamplingParams) -> tuple[SamplingParams, ...]:
    """Return the parameters of each of `n` choices; set seeds count up, so that they differ."""
    return tuple(_seeded(params, i) for i in range(params.n))


def _seeded(params: SamplingParams, i: int) -> SamplingParams:
    if i == 0 or params.seed == UNSET_SEED:
        return params
    return replace(params, seed=(params.seed + i) & 0xFFFFFFFF)


def whole_calls(pieces: Sequence[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    """Put the pieces of each tool call together, in the order of the calls."""
    calls: dict[int, ToolCallDelta] = {}
    for piece in pieces:
        known = calls.get(piece.index)
        calls[piece.index] = piece if known is None else _longer(known, piece)
    return tuple(call for _, call in sorted(calls.items()))


def _longer(call: ToolCallDelta, piece: ToolCallDelta) -> ToolCallDelta:
    return ToolCallDelta(
        index=call.index,
        id=call.id or piece.id,
        name=call.name or piece.name,
        arguments=call.arguments + piece.arguments,
    )
