"""The body of /v1/messages.

Fields of llama-server that Anthropic does not know (`seed`, `min_p`, `grammar`, …) mean the same as
in a chat completion.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.api.anthropic.blocks import read_messages, read_system
from gateway.api.anthropic.events import MessagesReply, failure
from gateway.api.chat_request import DialectFields, plan_chat, read_chat_request, read_log_probs
from gateway.api.fields.chat.conversation import ChatMedia
from gateway.api.fields.chat.reasoning import read_effort
from gateway.api.fields.chat.tools import (
    Tool,
    ToolUse,
    read_choice_name,
    read_choice_word,
    read_function,
)
from gateway.api.fields.options import (
    optional_string,
    read_int,
    read_object,
    read_single_choice,
)
from gateway.api.fields.structured import AnswerSchema, read_response_format
from gateway.api.reply import RequestPlan
from gateway.api.unsupported import Refusal, other_than, refuse_unsupported
from protocol.errors import InvalidRequest, NotStored
from protocol.wire.facts import ModelCard
from protocol.wire.sampling import INT32_MAX

_DEFAULT_BUDGET = 10000
"""llama-server's, in tokens, for thinking that is enabled without a budget."""
_DEFAULT_MAX_TOKENS = 4096
"""llama-server's; Anthropic demands the field."""

_REFUSED: Mapping[str, Refusal] = {
    "mcp_servers": ("remote tools are not supported yet", bool),
    "container": ("code execution is not supported yet", bool),
    "functions": ("OpenAI's functions are not supported yet", bool),
    "function_call": ("OpenAI's functions are not supported yet", other_than("auto", "none")),
}

_RUN_BY_CLIENT = re.compile(r"(bash|text_editor|memory|computer)_\d{8}")
"""Types of Anthropic's tools that the client runs. Their schemas are known to Anthropic's models;
ours see a name alone, as in llama-server."""

_CHOICES: Mapping[str, str] = {"auto": "auto", "any": "required", "none": "none"}


def plan(body: Mapping[str, Any], card: ModelCard) -> RequestPlan:
    """Plan a message; raises `InvalidRequest` naming the field."""
    refuse_unsupported(body, own=_REFUSED)
    _refuse_continued_thread(body)
    media = ChatMedia(card)
    messages = [*read_system(body.get("system")), *read_messages(body.get("messages"), media)]
    thinking = read_object(body, "thinking")
    output = read_object(body, "output_config")
    effort = optional_string(output.get("effort"), "output_config.effort")
    own = DialectFields(
        messages=tuple(messages),
        media=media,
        tools=_tool_use(body),
        schema=_schema(body, output.get("format")),
        effort=read_effort(body) if effort is None else effort,
        template_variables=_template_variables(thinking),
        sampling=_sampling(body, thinking),
        n_top=read_log_probs(body),
    )
    request = read_chat_request(body, card, own)
    return plan_chat(request, MessagesReply(card), failure=failure)


def _refuse_continued_thread(body: Mapping[str, Any]) -> None:
    """Refuse a body that leaves out the turns before; one that only asks to keep them is whole."""
    if read_object(body, "thread").get("type") == "continue":
        message = "Field 'thread': messages are not stored, send the whole conversation"
        raise NotStored(message, param="thread")


def _sampling(body: Mapping[str, Any], thinking: Mapping[str, Any]) -> dict[str, Any]:
    """Read the fields of `SamplingParams` that Anthropic names or limits in its own way."""
    n_predict = read_int(body, "max_tokens", -1, INT32_MAX)
    fields: dict[str, Any] = {"max_tokens": _DEFAULT_MAX_TOKENS if n_predict is None else n_predict}
    if body.get("stop_sequences") is not None:
        fields["stop"] = _stops(body["stop_sequences"])
    if thinking.get("type") in ("enabled", "disabled"):
        budget = read_int(thinking, "budget_tokens", 0, INT32_MAX)
        if thinking["type"] == "enabled":
            fields["thinking_budget_tokens"] = _DEFAULT_BUDGET if budget is None else budget
    return fields | {"n": read_single_choice(body)}


def _stops(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        message = "Field 'stop_sequences': must be an array of strings"
        raise InvalidRequest(message, param="stop_sequences")
    return value


def _tool_use(body: Mapping[str, Any]) -> ToolUse:
    """Read the tools that the client runs and the choice among them; Anthropic's own are skipped.

    Agents send `web_search` and the like to every server: llama-server, too, goes on. A choice of a
    skipped tool is `auto`.
    """
    value = body.get("tools")
    if value is not None and not isinstance(value, list):
        raise InvalidRequest("Field 'tools': must be an array", param="tools")
    tools, skipped = [], []
    for i, tool in enumerate(value or ()):
        if _is_run_by_client(tool, f"tools[{i}]"):
            tools.append(_tool(tool, f"tools[{i}]"))
        else:
            skipped.append(tool.get("name"))
    choice = read_object(body, "tool_choice")
    is_single = choice.get("disable_parallel_tool_use") is True
    chosen = _choice(choice, tools, skipped)
    return ToolUse(tuple(tools), chosen, parallel=False if is_single else None)


def _is_run_by_client(tool: Any, path: str) -> bool:
    if not isinstance(tool, dict):
        raise InvalidRequest(f"Field '{path}': must be an object", param=path)
    kind = optional_string(tool.get("type"), f"{path}.type")
    return kind in (None, "custom") or _RUN_BY_CLIENT.fullmatch(kind) is not None


def _tool(tool: Mapping[str, Any], path: str) -> Tool:
    if tool.get("type") not in (None, "custom"):
        tool = {"input_schema": {}, **tool}
    for key, wanted, name in (("name", str, "a string"), ("input_schema", dict, "an object")):
        if not isinstance(tool.get(key), wanted):
            message = f"Field '{path}.{key}': must be {name}"
            raise InvalidRequest(message, param=f"{path}.{key}")
    function = {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "parameters": tool["input_schema"],
    }
    return read_function(function, path)


def _choice(choice: Mapping[str, Any], tools: Sequence[Tool], skipped: Sequence[Any]) -> str:
    """Read the choice; `skipped` are the names of the tools that were left out."""
    if not choice:
        return "auto"
    kind = choice.get("type")
    if kind == "tool":
        if isinstance(choice.get("name"), str) and choice["name"] in skipped:
            return "auto"
        return read_choice_name(choice.get("name"), tools, choice, "tool_choice.name")
    if isinstance(kind, str) and kind in _CHOICES:
        return read_choice_word(_CHOICES[kind], tools, has_skipped=bool(skipped))
    message = "Field 'tool_choice.type': must be one of auto, any, tool, none"
    raise InvalidRequest(message, param="tool_choice.type")


def _template_variables(thinking: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables for the template; `chat_template_kwargs` takes precedence."""
    kind = thinking.get("type")
    if kind not in (None, "enabled", "disabled", "adaptive"):
        message = "Field 'thinking.type': must be one of enabled, disabled, adaptive"
        raise InvalidRequest(message, param="thinking.type")
    return {} if kind in (None, "adaptive") else {"enable_thinking": kind == "enabled"}


def _schema(body: Mapping[str, Any], form: Any) -> AnswerSchema:
    if form is None:
        return read_response_format(body, read_object(body, "response_format"))
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        message = "Field 'output_config.format': only json_schema is supported"
        raise InvalidRequest(message, param="output_config.format")
    return read_response_format(body, form, "output_config.format", is_flat=True)
