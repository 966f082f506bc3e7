"""The fields of a chat that are about tools, validated in llama-server's words."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.api.fields.options import wrong_type
from protocol.errors import InvalidRequest

MAX_NAME = 256

_CHOICES = ("auto", "none", "required")


def read_tools(body: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Read `tools`; null and an empty list are none."""
    tools = body.get("tools")
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise _refusal(f"Expected 'tools' to be an array, got {_shown(tools)}", "tools")
    return tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools))


def read_tool_choice(body: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> str:
    """Read `tool_choice`; a tool that is named becomes `function:NAME`."""
    choice = body.get("tool_choice")
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise InvalidRequest(f"Invalid tool_choice: {choice}", param="tool_choice")
        found = choice
    else:
        found = f"function:{_named(choice)}"
        known = {tool["function"]["name"] for tool in tools}
        if found.removeprefix("function:") not in known:
            message = f"Invalid tool_choice: no tool is named {_shown(_named(choice))}"
            raise InvalidRequest(message, param="tool_choice.function.name")
    if found not in ("auto", "none") and not tools:
        message = "Invalid tool_choice: a call is required, but there are no tools"
        raise InvalidRequest(message, param="tool_choice")
    return found


def check_tools(body: Mapping[str, Any], choice: str, *, stream: bool) -> None:
    """Refuse what does not go together with tools."""
    if choice != "none" and body.get("grammar"):
        message = "Cannot use custom grammar constraints with tools."
        raise InvalidRequest(message, param="grammar")
    if stream and body.get("logprobs"):
        message = "logprobs is not supported with tools + stream"
        raise InvalidRequest(message, param="logprobs")


def _named(choice: Any) -> str:
    if not isinstance(choice, dict):
        raise wrong_type("tool_choice", "string or object", choice)
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type", "function") != "function" or not isinstance(name, str):
        raise InvalidRequest(f"Invalid tool_choice: {_shown(choice)}", param="tool_choice")
    return name


def _tool(tool: Any, path: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind is None:
        raise _refusal(f"Missing tool type: {_shown(tool)}", path)
    if kind != "function":
        raise _refusal(f"Unsupported tool type: {_shown(tool)}", f"{path}.type")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise _refusal(f"Missing tool function: {_shown(tool)}", f"{path}.function")
    name = function.get("name")
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_NAME:
        message = f"the name must be a string of 1 to {MAX_NAME} printable characters"
        raise _refusal(message, f"{path}.function.name")
    if not isinstance(function.get("description", ""), str | None):
        raise _refusal("the description must be a string", f"{path}.function.description")
    if not isinstance(function.get("parameters", {}), dict | None):
        raise _refusal("the parameters must be an object", f"{path}.function.parameters")
    known = {key: value for key, value in function.items() if value is not None}
    return {"type": "function", "function": known}


def _shown(value: Any) -> str:
    return orjson.dumps(value).decode()[:200]


def _refusal(problem: str, param: str) -> InvalidRequest:
    return InvalidRequest(f"Failed to parse tools: {problem}", param=param)
