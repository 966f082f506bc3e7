"""The body of /v1/messages, turned into that of a chat and planned as one.

Fields of llama-server that Anthropic does not know (`seed`, `min_p`, `grammar` …) mean the same as
in a chat.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gateway.api.anthropic.blocks import read_messages, read_system
from gateway.api.anthropic.events import MessagesReply, failure
from gateway.api.fields.field_names import respelled
from gateway.api.fields.options import read_int, read_object
from gateway.api.openai import chat
from gateway.api.reply import RequestPlan
from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard
from protocol.wire.sampling import INT32_MAX

_DEFAULT_BUDGET = 10000
"""llama-server's, for thinking that is enabled without one."""
_DEFAULT_MAX_TOKENS = 4096
"""llama-server's; Anthropic demands the field."""

_OWN = frozenset(
    {"system", "messages", "tools", "tool_choice", "stop_sequences", "thinking", "output_config"}
)
"""What is rewritten; every other field means the same as in a chat."""

_SPELLINGS: Mapping[str, str] = {
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
}
"""A chat's field -> where it came from."""

_REFUSED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "mcp_servers": ("remote tools are", bool),
    "container": ("code execution is", bool),
    "functions": ("OpenAI's functions are", bool),
    "function_call": ("OpenAI's functions are", lambda value: value not in ("auto", "none")),
}
"""Name -> (what is not supported, whether a value that is not null asks for it)."""

_SOURCE = "messages.content.source.url"
"""What a link is called: blocks do not stay at their places, so which one it was is not known."""

_CHOICES: Mapping[str, str] = {"auto": "auto", "any": "required", "none": "none"}


def plan(body: Mapping[str, Any], card: ModelCard) -> RequestPlan:
    """Plan a message; raises `InvalidRequest` naming the field."""
    converted = to_chat(body)
    with respelled(_SPELLINGS):
        planned = chat.plan(converted, card)
    links = tuple(link._replace(param=_SOURCE) for link in planned.links)
    return replace(planned, reply=MessagesReply(card), failure=failure, links=links)


def to_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the chat that means the same."""
    for key, (what, asks) in _REFUSED.items():
        if body.get(key) is not None and asks(body[key]):
            raise InvalidRequest(f"Field '{key}': {what} not supported yet", param=key)
    converted = {key: value for key, value in body.items() if key not in _OWN | _REFUSED.keys()}
    converted["messages"] = read_system(body.get("system")) + read_messages(body.get("messages"))
    n_predict = read_int(body, "max_tokens", -1, INT32_MAX)
    converted["max_tokens"] = _DEFAULT_MAX_TOKENS if n_predict is None else n_predict
    if body.get("stop_sequences") is not None:
        converted["stop"] = _stops(body["stop_sequences"])
    tools = body.get("tools")
    if tools is not None:
        converted["tools"] = _tools(tools)
    converted |= _choice(read_object(body, "tool_choice"))
    converted |= _thinking(read_object(body, "thinking"), body)
    converted |= _output(read_object(body, "output_config"))
    for key in ("n", "n_cmpl"):
        read_int(body, key, 1, 1)
    return converted | {"n": 1}


def _stops(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        message = "Field 'stop_sequences': must be an array of strings"
        raise InvalidRequest(message, param="stop_sequences")
    return value


def _tools(tools: Any) -> list[dict[str, Any]]:
    if not isinstance(tools, list):
        raise InvalidRequest("Field 'tools': must be an array", param="tools")
    return [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def _tool(tool: Any, path: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise InvalidRequest(f"Field '{path}': must be an object", param=path)
    kind = tool.get("type")
    if kind not in (None, "custom"):
        message = f"Field '{path}.type': only custom tools are supported, not {kind}"
        raise InvalidRequest(message, param=f"{path}.type")
    for key, wanted, name in (("name", str, "a string"), ("input_schema", dict, "an object")):
        if not isinstance(tool.get(key), wanted):
            message = f"Field '{path}.{key}': must be {name}"
            raise InvalidRequest(message, param=f"{path}.{key}")
    function = {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "parameters": tool["input_schema"],
    }
    return {"type": "function", "function": function}


def _choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    if not choice:
        return {}
    kind = choice.get("type")
    fields: dict[str, Any] = {}
    if kind == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif isinstance(kind, str) and kind in _CHOICES:
        fields["tool_choice"] = _CHOICES[kind]
    else:
        message = "Field 'tool_choice.type': must be one of auto, any, tool, none"
        raise InvalidRequest(message, param="tool_choice.type")
    if choice.get("disable_parallel_tool_use") is True:
        fields["parallel_tool_calls"] = False
    return fields


def _thinking(thinking: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Set what the template is told of thinking; the request's own word for it wins."""
    kind = thinking.get("type")
    if kind not in (None, "enabled", "disabled", "adaptive"):
        message = "Field 'thinking.type': must be one of enabled, disabled, adaptive"
        raise InvalidRequest(message, param="thinking.type")
    if kind is None or kind == "adaptive":
        return {}
    kwargs = {"enable_thinking": kind == "enabled", **read_object(body, "chat_template_kwargs")}
    fields: dict[str, Any] = {"chat_template_kwargs": kwargs}
    budget = read_int(thinking, "budget_tokens", 0, INT32_MAX)
    if kind == "enabled":
        fields["thinking_budget_tokens"] = _DEFAULT_BUDGET if budget is None else budget
    return fields


def _output(output: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if output.get("effort") is not None:
        fields["reasoning_effort"] = output["effort"]
    form = output.get("format")
    if form is not None:
        if not isinstance(form, dict) or form.get("type") != "json_schema":
            message = "Field 'output_config.format': only json_schema is supported"
            raise InvalidRequest(message, param="output_config.format")
        schema = {"name": "output", "schema": form.get("schema")}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields
