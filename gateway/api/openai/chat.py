"""The body of /v1/chat/completions, turned into tasks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.api.fields.field_names import respelled
from gateway.api.fields.options import read_flag, read_n_top, read_object, read_ping_interval
from gateway.api.fields.params import read_params
from gateway.api.fields.structured import read_response_format
from gateway.api.openai.chunks import ChatReply
from gateway.api.openai.functions import SPELLINGS, as_tools
from gateway.api.openai.messages import read_begun, read_messages
from gateway.api.openai.parts import lift_media
from gateway.api.openai.reasoning import (
    read_continuation,
    read_reasoning_format,
    read_template_variables,
    refuse_marks,
)
from gateway.api.openai.tools import check_tools, read_tool_choice, read_tools
from gateway.api.reply import RequestPlan, ResponseOptions, fan_out
from gateway.api.unsupported import refuse_unsupported
from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Chat, Generate

_CHAT_FORMAT = "peg-native"
"""What llama-server calls the parser of nearly every template."""
_LLAMA_SERVER_TOP = 20
"""llama-server's `top_logprobs` when only `logprobs` is given; OpenAI's would be 0."""


def plan(body: Mapping[str, Any], card: ModelCard) -> RequestPlan:
    """Plan a chat completion; raises `InvalidRequest` naming the field."""
    refuse_unsupported(body, besides=("functions", "function_call"))
    body, names_functions = as_tools(body)
    if not names_functions:
        return _plan(body, card)
    with respelled(SPELLINGS):
        return _plan(body, card, names_functions=True)


def _plan(
    body: Mapping[str, Any], card: ModelCard, *, names_functions: bool = False
) -> RequestPlan:
    body, media = lift_media(body, card)
    refuse_marks(body)
    if read_flag(body, "echo"):
        raise InvalidRequest("Field 'echo': echo in a chat is not supported yet", param="echo")
    n_top = _read_n_top(body)
    chat = read_chat(body, card)
    # `logprobs` is a boolean here and a number (n_probs) in the table of parameters.
    native = {key: value for key, value in body.items() if key != "logprobs"}
    if n_top is not None:
        native["n_probs"] = max(n_top, 1)
    params = replace(read_params(native, card), chat_format=_CHAT_FORMAT)
    if chat.tools:
        check_tools(body, chat.tool_choice, stream=params.stream)
    is_verbose = read_flag(body, "verbose")
    task = Generate(
        task_id=0,
        chat=chat,
        params=params,
        media=tuple(media.pieces),
        tells_prompt=is_verbose,
    )
    tasks, each = fan_out([task], params)
    options = ResponseOptions(
        include_usage=read_flag(read_object(body, "stream_options"), "include_usage"),
        verbose=is_verbose,
        n_top=n_top if n_top is not None else params.n_probs or -1,
        names_functions=names_functions,
    )
    reply = ChatReply(card, each, options)
    return RequestPlan(
        tasks=tasks,
        reply=reply,
        chat_id=reply.id,
        stream=params.stream,
        ping_interval_s=read_ping_interval(body),
        links=tuple(media.links),
    )


def read_chat(body: Mapping[str, Any], card: ModelCard) -> Chat:
    """Read what the prompt is made of; raises `InvalidRequest` naming the field."""
    messages = read_messages(body)
    tools = read_tools(body)
    continuation = read_continuation(body, messages, prefills=card.prefill_assistant)
    if continuation.continues and card.jinja:
        messages = (*messages[:-1], {**messages[-1], "content": read_begun(body)})
    return Chat(
        messages=messages,
        kwargs=read_template_variables(body, card.template_kwargs) or None,
        tools=tools,
        tool_choice=read_tool_choice(body, tools),
        parallel_tool_calls=_read_parallel(body),
        schema=read_response_format(body),
        reasoning_format=read_reasoning_format(body, card.reasoning_format),
        add_generation_prompt=continuation.add_generation_prompt,
        continue_final_message=continuation.continues,
        continue_thought=continuation.thought,
    )


def _read_n_top(body: Mapping[str, Any]) -> int | None:
    n_top = read_n_top(body, "top_logprobs")
    if not read_flag(body, "logprobs"):
        if n_top is not None:
            message = "top_logprobs requires logprobs to be set to true"
            raise InvalidRequest(message, param="top_logprobs")
        return None
    return _LLAMA_SERVER_TOP if n_top is None else n_top


def _read_parallel(body: Mapping[str, Any]) -> bool | None:
    is_set = body.get("parallel_tool_calls") is not None
    return read_flag(body, "parallel_tool_calls") if is_set else None
