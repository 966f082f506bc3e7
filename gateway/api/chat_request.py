"""One chat, typed: every dialect reads its body into a `ChatRequest`, and one function plans it.

A dialect reads the fields that it names in its own way into `DialectFields`. The fields that have
one name in all chats, which are llama-server's, are read here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.api.fields.chat.conversation import ChatMedia, ChatMessage
from gateway.api.fields.chat.reasoning import (
    Continuation,
    read_continuation,
    read_reasoning_format,
    read_template_variables,
    refuse_marks,
)
from gateway.api.fields.chat.tools import ToolUse, check_tool_use
from gateway.api.fields.options import read_flag, read_n_top, read_object, read_ping_interval
from gateway.api.fields.params import read_params
from gateway.api.fields.structured import AnswerSchema
from gateway.api.reply import (
    RequestPlan,
    ResponseFormatter,
    ResponseOptions,
    choices_of,
    error_event,
)
from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Chat, Generate
from protocol.wire.sampling import SamplingParams

_CHAT_FORMAT = "peg-native"
"""What llama-server calls the parser of nearly every template."""
_LLAMA_SERVER_TOP = 20
"""llama-server's `top_logprobs` when only `logprobs` is given; OpenAI's would be 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectFields:
    """The fields that each dialect names in its own way."""

    messages: tuple[ChatMessage, ...]
    media: ChatMedia
    tools: ToolUse = ToolUse()
    schema: AnswerSchema = AnswerSchema()
    effort: str | None = None
    """How much to reason, for the template."""
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    """What the request tells the template by other fields than `chat_template_kwargs`."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `SamplingParams` by their own names; they replace those in the body."""
    n_top: int | None = None
    """Alternatives shown for each token; None is no log probabilities."""
    messages_field: str = "messages"
    """Where the messages stand, for errors about several of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A chat that was read from a body, whatever its dialect."""

    own: DialectFields
    params: SamplingParams
    template_variables: Mapping[str, Any]
    parallel_tool_calls: bool | None
    reasoning_format: str
    continuation: Continuation
    options: ResponseOptions
    ping_interval_s: float | None

    @property
    def choices(self) -> tuple[SamplingParams, ...]:
        """The parameters of each choice."""
        return choices_of(self.params)


def read_chat_request(body: Mapping[str, Any], card: ModelCard, own: DialectFields) -> ChatRequest:
    """Read what has one name in all chats; raises `InvalidRequest` naming the field."""
    refuse_marks(body)
    if read_flag(body, "echo"):
        raise InvalidRequest("Field 'echo': echo in a chat is not supported yet", param="echo")
    reasoning_format = read_reasoning_format(body, card.reasoning_format)
    params = _read_params(body, card, own)
    if own.tools.tools:
        streams_log_probs = params.stream and own.n_top is not None
        check_tool_use(body, own.tools.choice, streams_log_probs=streams_log_probs)
    defaults = {**(card.template_kwargs or {}), **own.template_variables}
    return ChatRequest(
        own=own,
        params=params,
        template_variables=read_template_variables(body, defaults, own.effort),
        parallel_tool_calls=_read_parallel(body, own.tools),
        reasoning_format=reasoning_format,
        continuation=read_continuation(body, own.messages, card, own.messages_field),
        options=ResponseOptions(
            include_usage=read_flag(read_object(body, "stream_options"), "include_usage"),
            verbose=read_flag(body, "verbose"),
            n_top=own.n_top if own.n_top is not None else params.n_probs or -1,
        ),
        ping_interval_s=read_ping_interval(body),
    )


def plan_chat(
    request: ChatRequest,
    reply: ResponseFormatter,
    *,
    chat_id: str = "",
    failure: Callable[[Mapping[str, Any]], bytes] = error_event,
) -> RequestPlan:
    """Turn a chat into tasks, one a choice."""
    chat, media = _chat(request), request.own.media
    tasks = tuple(
        Generate(
            chat=chat,
            params=params,
            media=tuple(media.pieces),
            media_fields=tuple(media.fields),
            returns_prompt=request.options.verbose,
        )
        for params in request.choices
    )
    return RequestPlan(
        tasks=tasks,
        reply=reply,
        chat_id=chat_id,
        stream=request.params.stream,
        ping_interval_s=request.ping_interval_s,
        links=tuple(media.links),
        failure=failure,
        messages_field=request.own.messages_field,
        schema_field=request.own.schema.field,
    )


def read_log_probs(body: Mapping[str, Any]) -> int | None:
    """Read OpenAI's `logprobs` and `top_logprobs`: alternatives of each token, or None.

    A number in `logprobs`, as in a text completion, is that of the alternatives; 0 is none at all.
    """
    n_top = read_n_top(body, "top_logprobs")
    if type(body.get("logprobs")) in (int, float):
        is_wanted = bool(n_alternatives := read_n_top(body, "logprobs"))
        n_top = n_alternatives if is_wanted and n_top is None else n_top
    else:
        is_wanted = read_flag(body, "logprobs")
    if not is_wanted:
        if n_top is not None:
            message = "top_logprobs requires logprobs to be set to true"
            raise InvalidRequest(message, param="top_logprobs")
        return None
    return _LLAMA_SERVER_TOP if n_top is None else n_top


def _chat(request: ChatRequest) -> Chat:
    own, continuation = request.own, request.continuation
    return Chat(
        messages=tuple([message.for_template() for message in own.messages]),
        kwargs=dict(request.template_variables) or None,
        tools=own.tools.tools,
        tool_choice=own.tools.choice,
        parallel_tool_calls=request.parallel_tool_calls,
        schema=own.schema.text,
        reasoning_format=request.reasoning_format,
        add_generation_prompt=continuation.add_generation_prompt,
        continue_final_message=continuation.continues,
        repeats_final_message=not continuation.is_asked,
        continue_reasoning=continuation.thought,
    )


def _read_params(body: Mapping[str, Any], card: ModelCard, own: DialectFields) -> SamplingParams:
    # `logprobs` is a flag here and a number (n_probs) in the table of parameters.
    fields = {**{key: value for key, value in body.items() if key != "logprobs"}, **own.sampling}
    if own.n_top is not None:
        fields["n_probs"] = max(own.n_top, 1)
    return replace(read_params(fields, card), chat_format=_CHAT_FORMAT)


def _read_parallel(body: Mapping[str, Any], tools: ToolUse) -> bool | None:
    if tools.parallel is not None or body.get("parallel_tool_calls") is None:
        return tools.parallel
    return read_flag(body, "parallel_tool_calls")
