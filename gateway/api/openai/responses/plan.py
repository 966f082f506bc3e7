"""The body of /v1/responses."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.api.chat_request import DialectFields, plan_chat, read_chat_request, read_log_probs
from gateway.api.fields.chat.conversation import ChatMedia
from gateway.api.fields.chat.reasoning import read_effort
from gateway.api.fields.chat.tools import (
    Tool,
    ToolUse,
    only_allowed,
    read_choice_name,
    read_choice_word,
    read_function,
)
from gateway.api.fields.options import (
    optional_string,
    read_int,
    read_n_top,
    read_object,
    read_single_choice,
)
from gateway.api.fields.structured import AnswerSchema, read_response_format
from gateway.api.openai.responses.events import ResponsesReply
from gateway.api.openai.responses.inputs import read_input
from gateway.api.reply import RequestPlan
from gateway.api.unsupported import Refusal, other_than, refuse_unsupported
from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard
from protocol.wire.sampling import INT32_MAX

_LOG_PROBS = "message.output_text.logprobs"

_REFUSED: Mapping[str, Refusal] = {
    "previous_response_id": ("not supported, answers are not stored", bool),
    "conversation": ("not supported, conversations are not stored", bool),
    "background": ("not supported, answers are not stored", bool),
    "prompt": ("not supported, prompts are not stored", bool),
    "functions": ("not supported, name functions in tools", bool),
    "function_call": ("not supported, use tool_choice", other_than("auto", "none")),
    "truncation": ("must be auto or disabled", other_than("disabled", "auto")),
}

_DATE = re.compile(r"_\d{4}_\d{2}_\d{2}$")
"""What a tool's type may end with: `web_search_2025_08_26` is chosen as `web_search`."""


def plan(body: Mapping[str, Any], card: ModelCard) -> RequestPlan:
    """Plan a response; raises `InvalidRequest` naming the field."""
    refuse_unsupported(body, own=_REFUSED)
    media = ChatMedia(card)
    messages = read_input(body, media)
    effort = optional_string(read_object(body, "reasoning").get("effort"), "reasoning.effort")
    own = DialectFields(
        messages=messages,
        messages_field="input",
        media=media,
        tools=_tool_use(body),
        schema=_schema(body),
        effort=read_effort(body) if effort is None else effort,
        sampling=_sampling(body),
        n_top=_read_n_top(body),
    )
    request = read_chat_request(body, card, own)
    params = request.params
    echo = _echo(body, params.temperature, params.top_p)
    reply = ResponsesReply(card, params, echo=echo, n_top=request.options.n_top)
    return plan_chat(request, reply, failure=reply.failed)


def _sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    n_predict = read_int(body, "max_output_tokens", -1, INT32_MAX)
    fields = {} if n_predict is None else {"max_tokens": n_predict}
    return fields | {"n": read_single_choice(body)}


def _read_n_top(body: Mapping[str, Any]) -> int | None:
    include = body.get("include")
    if include is not None and not isinstance(include, list):
        raise InvalidRequest("Field 'include': must be an array", param="include")
    n_top = read_n_top(body, "top_logprobs")
    if n_top is not None or _LOG_PROBS in (include or ()):
        return n_top or 0
    return read_log_probs(body)


def _schema(body: Mapping[str, Any]) -> AnswerSchema:
    form = read_object(body, "text").get("format")
    if form is None:
        return read_response_format(body, read_object(body, "response_format"))
    if not isinstance(form, dict):
        raise InvalidRequest("Field 'text.format': must be an object", param="text.format")
    return read_response_format(body, form, "text.format", is_flat=True)


def _tool_use(body: Mapping[str, Any]) -> ToolUse:
    """Read functions and the choice among them; OpenAI's own tools are skipped.

    Agents send `web_search` and the like to every server: llama-server, too, goes on without them,
    and takes a choice of one of them for `auto`.
    """
    value = body.get("tools")
    if value is not None and not isinstance(value, list):
        raise InvalidRequest("'tools' must be an array of objects", param="tools")
    functions = {f"tools[{i}]": tool for i, tool in enumerate(value or ()) if _is_function(tool, i)}
    tools = tuple(_function(tool, path) for path, tool in functions.items())
    skipped = [str(tool.get("type")) for tool in value or () if tool.get("type") != "function"]
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        tools = only_allowed(tools, choice.get("tools"), "tool_choice.tools")
        choice = choice.get("mode")
    return ToolUse(tools, _choice(choice, tools, skipped))


def _is_function(tool: Any, i: int) -> bool:
    if not isinstance(tool, dict):
        raise InvalidRequest("'tools' must be an array of objects", param=f"tools[{i}]")
    return tool.get("type") == "function"


def _function(tool: Mapping[str, Any], path: str) -> Tool:
    function = {key: value for key, value in tool.items() if key != "type"}
    return read_function({"strict": True, **function}, path)


def _choice(choice: Any, tools: Sequence[Tool], skipped: Sequence[str]) -> str:
    """Read the choice; `skipped` are the types of the tools that were left out."""
    if not isinstance(choice, dict):
        return read_choice_word(choice, tools, has_skipped=bool(skipped))
    kind = choice.get("type")
    if kind == "function":
        return read_choice_name(choice.get("name"), tools, choice, "tool_choice.name")
    if any(kind in (other, _DATE.sub("", other)) for other in skipped):
        return "auto"
    message = "Field 'tool_choice.type': only functions can be chosen"
    raise InvalidRequest(message, param="tool_choice.type")


def _echo(body: Mapping[str, Any], temperature: float, top_p: float) -> dict[str, Any]:
    """Return the fields of the request that OpenAI repeats in its answer."""
    return {
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "temperature": temperature,
        "text": {"format": {"type": "text"}, **read_object(body, "text")},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": top_p,
    }
