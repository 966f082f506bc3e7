"""The body of /v1/responses, turned into that of a chat and planned as one."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gateway.api.fields.field_names import respell, respelled
from gateway.api.fields.options import read_int, read_n_top, read_object
from gateway.api.openai import chat
from gateway.api.openai.responses.events import ResponsesReply
from gateway.api.openai.responses.inputs import read_input
from gateway.api.reply import RequestPlan
from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard
from protocol.wire.sampling import INT32_MAX

_LOG_PROBS = "message.output_text.logprobs"

_OWN = frozenset(
    {"input", "instructions", "max_output_tokens", "tools", "tool_choice", "reasoning", "text"}
)
"""What is rewritten; every other field means the same as in a chat."""

_SPELLINGS: Mapping[str, str] = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""A chat's field -> where it came from."""

_REFUSED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "previous_response_id": ("answers are not stored", bool),
    "conversation": ("conversations are not stored", bool),
    "background": ("answers are not stored", bool),
    "prompt": ("prompts are not stored", bool),
    "functions": ("functions are among the tools", bool),
    "function_call": ("tool_choice says it", lambda value: value not in ("auto", "none")),
    "truncation": ("it is not known", lambda value: value not in ("disabled", "auto")),
}
"""Name -> (why it is not supported, whether a value that is not null asks for it)."""


def plan(body: Mapping[str, Any], card: ModelCard) -> RequestPlan:
    """Plan a response; raises `InvalidRequest` naming the field."""
    converted = to_chat(body)
    with respelled(_SPELLINGS):
        planned = chat.plan(converted, card)
    params = planned.tasks[0].params
    n_top = converted.get("top_logprobs") if converted.get("logprobs") else None
    reply = ResponsesReply(
        card,
        params,
        echo=_echo(body, params.temperature, params.top_p),
        n_top=n_top if n_top is not None else params.n_probs or -1,
    )
    links = tuple(link._replace(param=respell(link.param, _SPELLINGS)) for link in planned.links)
    return replace(planned, reply=reply, failure=reply.failed, links=links)


def to_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the chat that means the same."""
    for key, (why, asks) in _REFUSED.items():
        value = body.get(key)
        if value is not None and asks(value):
            raise InvalidRequest(f"Field '{key}': not supported, {why}", param=key)
    converted = {key: value for key, value in body.items() if key not in _OWN | _REFUSED.keys()}
    converted["messages"] = read_input(body)
    converted |= _tools(body)
    n_predict = read_int(body, "max_output_tokens", -1, INT32_MAX)
    if n_predict is not None:
        converted["max_tokens"] = n_predict
    converted |= _thinking(read_object(body, "reasoning"))
    form = read_object(body, "text").get("format")
    if form is not None:
        converted["response_format"] = _response_format(form)
    _read_log_probs(body, converted)
    for key in ("n", "n_cmpl"):
        read_int(body, key, 1, 1)
    return converted | {"n": 1}


def _read_log_probs(body: Mapping[str, Any], converted: dict[str, Any]) -> None:
    include = body.get("include")
    if include is not None and not isinstance(include, list):
        raise InvalidRequest("Field 'include': must be an array", param="include")
    n_top = read_n_top(body, "top_logprobs")
    if n_top is not None or _LOG_PROBS in (include or ()):
        converted["logprobs"] = True
        converted["top_logprobs"] = n_top or 0


def _thinking(reasoning: Mapping[str, Any]) -> dict[str, Any]:
    effort = reasoning.get("effort")
    if effort is None:
        return {}
    if not isinstance(effort, str):
        message = "Field 'reasoning.effort': must be a string"
        raise InvalidRequest(message, param="reasoning.effort")
    return {"reasoning_effort": effort}


def _response_format(form: Any) -> dict[str, Any]:
    if not isinstance(form, dict):
        raise InvalidRequest("Field 'text.format': must be an object", param="text.format")
    if form.get("type") != "json_schema":
        return form
    return {
        "type": "json_schema",
        "json_schema": {key: value for key, value in form.items() if key != "type"},
    }


def _tools(body: Mapping[str, Any]) -> dict[str, Any]:
    """Rewrite functions and the choice among them; OpenAI's own tools are skipped.

    Agents send `web_search` and the like to every server: llama-server, too, goes on without them.
    """
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise InvalidRequest("'tools' must be an array of objects", param="tools")
    functions = [_function(tool, f"tools[{i}]") for i, tool in enumerate(tools or ())]
    found: dict[str, Any] = {"tools": [one for one in functions if one is not None]}
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(found["tools"], choice)
    if choice is not None:
        found["tool_choice"] = _choice(choice)
    return found


def _function(tool: Any, path: str) -> dict[str, Any] | None:
    if not isinstance(tool, dict):
        raise InvalidRequest("'tools' must be an array of objects", param=path)
    if tool.get("type") != "function":
        return None
    function = {key: value for key, value in tool.items() if key != "type"}
    return {"type": "function", "function": {"strict": True, **function}}


def _choice(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "function":
        message = "Field 'tool_choice.type': only functions can be chosen"
        raise InvalidRequest(message, param="tool_choice.type")
    return {"type": "function", "function": {"name": choice.get("name")}}


def _allowed(tools: list[dict[str, Any]], choice: Mapping[str, Any]) -> dict[str, Any]:
    listed = choice.get("tools")
    if not isinstance(listed, list):
        message = "Field 'tool_choice.tools': must be an array"
        raise InvalidRequest(message, param="tool_choice.tools")
    names = [one.get("name") for one in listed if isinstance(one, dict)]
    allowed = [tool for tool in tools if tool["function"].get("name") in names]
    return {"tools": allowed, "tool_choice": choice.get("mode", "auto")}


def _echo(body: Mapping[str, Any], temperature: float, top_p: float) -> dict[str, Any]:
    """Return the fields of the request that OpenAI repeats in its answer."""
    return {
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "temperature": temperature,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": top_p,
    }
