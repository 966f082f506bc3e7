"""The tools of a chat completion, and the earlier calls in its messages."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.api.fields.chat.conversation import tool_call
from gateway.api.fields.chat.tools import (
    Tool,
    ToolUse,
    only_allowed,
    read_choice_name,
    read_choice_word,
    read_function,
    shown,
    tools_refusal,
)
from gateway.api.fields.options import read_object
from protocol.errors import InvalidRequest


def read_tool_use(body: Mapping[str, Any]) -> ToolUse:
    """Read `tools` and `tool_choice`; null and an empty list are no tools."""
    value = body.get("tools")
    if value is not None and not isinstance(value, list):
        raise tools_refusal(f"Expected 'tools' to be an array, got {shown(value)}", "tools")
    tools = tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(value or ()))
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        tools, choice = _allowed(read_object(choice, "allowed_tools"), tools)
    return ToolUse(tools, _choice(choice, tools))


def _allowed(choice: Mapping[str, Any], tools: Sequence[Tool]) -> tuple[tuple[Tool, ...], Any]:
    """Return the tools that may be called, and the choice among them."""
    listed = choice.get("tools")
    if isinstance(listed, list):
        listed = [tool.get("function") for tool in listed if isinstance(tool, dict)]
    path = "tool_choice.allowed_tools.tools"
    return only_allowed(tools, listed, path), choice.get("mode")


def _tool(tool: Any, path: str) -> Tool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind is None:
        raise tools_refusal(f"Missing tool type: {shown(tool)}", path)
    if kind != "function":
        raise tools_refusal(f"Unsupported tool type: {shown(tool)}", f"{path}.type")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise tools_refusal(f"Missing tool function: {shown(tool)}", f"{path}.function")
    return read_function(function, f"{path}.function")


def _choice(choice: Any, tools: Sequence[Tool]) -> str:
    if not isinstance(choice, dict):
        return read_choice_word(choice, tools)
    function = choice.get("function") if choice.get("type", "function") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    return read_choice_name(name, tools, choice, "tool_choice.function.name")


def read_calls(message: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    """Read the calls of an assistant's message; raises `InvalidRequest` in llama-server's words."""
    calls = message.get("tool_calls")
    if calls is None:
        return []
    if not isinstance(calls, list):
        problem = f"Field '{path}.tool_calls': must be an array"
        raise InvalidRequest(problem, param=f"{path}.tool_calls")
    return [_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(calls)]


def _call(call: Any, path: str) -> dict[str, Any]:
    kind = call.get("type") if isinstance(call, dict) else None
    if kind is None:
        raise _refusal("Missing tool call type", path)
    if kind != "function":
        raise _refusal("Unsupported tool call type", f"{path}.type")
    function = call.get("function")
    if not isinstance(function, dict):
        raise _refusal("Missing tool call function", f"{path}.function")
    if not isinstance(function.get("name"), str):
        raise _refusal("Missing tool call name", f"{path}.function.name")
    if not isinstance(function.get("arguments", ""), str | dict | None):
        problem = "the arguments must be a string of JSON or an object"
        raise _refusal(problem, f"{path}.function.arguments")
    call_id = call.get("id")
    if not isinstance(call_id, str | None):
        raise _refusal("the id of a tool call must be a string", f"{path}.id")
    return tool_call(function["name"], function.get("arguments"), call_id)


def _refusal(problem: str, param: str) -> InvalidRequest:
    return InvalidRequest(f"Failed to parse messages: {problem}", param=param)
