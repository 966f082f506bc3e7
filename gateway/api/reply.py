"""What a body asks for (`RequestPlan`) and how its answer is written (`ResponseFormatter`).

A formatter is pure: messages of the wire in, bytes or JSON values out. It serves one request; the
index of a choice is the index of its task in the plan.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import orjson

from gateway.api.fields.media_links import MediaLink
from gateway.api.sse import event
from protocol.errors import InvalidRequest
from protocol.wire.facts import SystemPrompt, TokenProb
from protocol.wire.messages import Delta, Done, Generate, Progress, Started, ToolCallDelta
from protocol.wire.sampling import UNSET_SEED, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """Everything that one task produced, for an answer in one piece."""

    text: str
    tokens: tuple[int, ...]
    probs: tuple[TokenProb, ...]
    done: Done
    reasoning: str = ""
    n_reasoning: int = 0
    """Tokens up to the end of the reasoning."""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    """Each call in one piece."""
    prompt: tuple[TokenProb, ...] = ()
    """The tokens of the prompt, where the request asked for them."""


class ResponseFormatter:
    """Writes the answer of one API: the frames of a stream, or one body."""

    is_read_by_chunk: ClassVar[bool] = False
    """Old clients take each read from the socket for one event, as llama-server's sample does."""

    def started(self, index: int, message: Started) -> None:
        """Note where the choice runs; there is no frame yet."""

    def progress(self, index: int, message: Progress) -> bytes:
        """Return the frame that tells how far the prompt is read; by default there is none."""
        return b""

    def delta(self, index: int, message: Delta) -> bytes:
        """Return the frames of what was added; may be empty."""
        raise NotImplementedError

    def done(self, index: int, message: Done) -> bytes:
        """Return the frame that ends one choice."""
        raise NotImplementedError

    def end(self) -> bytes:
        """Return what follows the last choice; by default nothing."""
        return b""

    def result(self, outcomes: Sequence[TaskOutcome]) -> Any:
        """Return the JSON value of an answer in one piece."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseOptions:
    """What the client wants in its answer, besides the sampling."""

    include_usage: bool = False
    verbose: bool = False
    n_top: int = 0
    """Alternatives shown for each token; -1 is no log probabilities."""
    names_functions: bool = False
    """Calls are written as `function_call`, as OpenAI did in 2023."""


def error_event(body: Mapping[str, Any]) -> bytes:
    """Return the frame of an error within a stream, as OpenAI's clients read it."""
    return event(orjson.dumps(body))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPlan:
    """The tasks of a request, one for each choice, and how to answer."""

    tasks: tuple[Generate, ...]
    reply: ResponseFormatter
    stream: bool
    chat_id: str = ""
    """The id by which the client can refer to the answer while it runs."""
    ping_interval_s: float | None = None
    """Time between comment frames; 0 is never, None the server's own interval."""
    system_prompt: SystemPrompt | None = None
    """Set in all workers of the model before the tasks run."""
    links: tuple[MediaLink, ...] = ()
    """Media of the tasks that are not fetched yet."""
    failure: Callable[[Mapping[str, Any]], bytes] = error_event
    """Returns the frame of an error that comes after the first byte."""
    messages_field: str = "messages"
    """The field of the body from which the messages come, for errors of the chat template."""
    schema_field: str = "response_format"
    """The field from which the schema of a chat's answer comes, for errors in it."""


_MAX_TASKS = 8192
"""Maximum tasks of a request with several choices: to make one takes the loop 4 us."""


def fan_out(
    prompts: Sequence[Generate], params: SamplingParams
) -> tuple[tuple[Generate, ...], tuple[SamplingParams, ...]]:
    """Repeat each prompt `n` times; returns the tasks and the parameters of each.

    Raises `InvalidRequest` above `_MAX_TASKS`, because making them would hold the loop.
    """
    if params.n > 1 and len(prompts) * params.n > _MAX_TASKS:
        message = (
            f"Field 'prompt': at most {_MAX_TASKS} answers at once, but got {len(prompts)}"
            f" with {params.n} choices each"
        )
        raise InvalidRequest(message, param="prompt")
    choices = choices_of(params)
    tasks = tuple(replace(prompt, params=choice) for prompt in prompts for choice in choices)
    return tasks, tuple(task.params for task in tasks)


def choices_of(params: SamplingParams) -> tuple[SamplingParams, ...]:
    """Return the parameters of each of `n` choices; a given seed counts up."""
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
