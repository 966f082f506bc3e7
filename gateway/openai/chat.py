"""The body of /v1/chat/completions, turned into tasks."""

from collections.abc import Mapping
from typing import Any

from gateway.llamacpp.options import read_flag, read_int, read_object, read_ping_interval
from gateway.openai.chunks import ChatReply
from gateway.openai.messages import read_messages
from gateway.openai.usage import Wishes
from gateway.refusals import refuse_unsupported
from gateway.reply import Plan, fan_out
from protocol.errors import InvalidRequest
from protocol.facts import ModelCard
from protocol.messages import Chat, Generate
from protocol.schema import read

_LLAMA_SERVER_TOP = 20
"""llama-server's `top_logprobs` when only `logprobs` is given; OpenAI's would be 0."""


def plan(body: Mapping[str, Any], card: ModelCard) -> Plan:
    """Plan a chat completion; raises `InvalidRequest` naming the field."""
    refuse_unsupported(body)
    if read_flag(body, "echo"):
        raise InvalidRequest("Field 'echo': echo in a chat is not supported yet", param="echo")
    n_top = _read_n_top(body)
    chat = Chat(messages=read_messages(body), kwargs=_read_kwargs(body) or None)
    # `logprobs` is a boolean here and a number (n_probs) in the table of parameters.
    native = {key: value for key, value in body.items() if key != "logprobs"}
    if n_top is not None:
        native["n_probs"] = max(n_top, 1)
    params = read(card.defaults, native)
    tasks, each = fan_out([Generate(task_id=0, chat=chat, params=params)], params)
    wishes = Wishes(
        include_usage=read_flag(read_object(body, "stream_options"), "include_usage"),
        verbose=read_flag(body, "verbose"),
        n_top=n_top if n_top is not None else params.n_probs or -1,
    )
    return Plan(
        tasks=tasks,
        reply=ChatReply(card, each, wishes),
        stream=params.stream,
        ping_interval_s=read_ping_interval(body),
    )


def _read_n_top(body: Mapping[str, Any]) -> int | None:
    n_top = read_int(body, "top_logprobs", 0, 1000)
    if not read_flag(body, "logprobs"):
        if n_top is not None:
            message = "top_logprobs requires logprobs to be set to true"
            raise InvalidRequest(message, param="top_logprobs")
        return None
    return _LLAMA_SERVER_TOP if n_top is None else n_top


def _read_kwargs(body: Mapping[str, Any]) -> dict[str, Any]:
    """Merge what the template will see: its own variables and OpenAI's `reasoning_effort`."""
    kwargs = dict(read_object(body, "chat_template_kwargs"))
    thinking = kwargs.get("enable_thinking")
    if thinking is not None and not isinstance(thinking, bool):
        kind = "string" if isinstance(thinking, str) else type(thinking).__name__
        message = f'invalid type for "enable_thinking" (expected boolean, got {kind})'
        raise InvalidRequest(message, param="chat_template_kwargs.enable_thinking")
    effort = body.get("reasoning_effort")
    if effort is not None and not isinstance(effort, str):
        raise InvalidRequest("Field 'reasoning_effort': must be a string", param="reasoning_effort")
    if effort == "none":
        kwargs.pop("reasoning_effort", None)
        kwargs["enable_thinking"] = False
    elif effort:
        kwargs["reasoning_effort"] = effort
    return kwargs
