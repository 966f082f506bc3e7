"""The `tool_calls` of an assistant's message in a conversation."""

from collections.abc import Mapping
from typing import Any

from protocol.errors import InvalidRequest


def read_calls(message: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    """Read earlier calls; raises `InvalidRequest` in llama-server's words."""
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
    named = {"name": function["name"], "arguments": function.get("arguments") or "{}"}
    found = {"type": "function", "function": named}
    return found if call_id is None else {**found, "id": call_id}


def _refusal(problem: str, param: str) -> InvalidRequest:
    return InvalidRequest(f"Failed to parse messages: {problem}", param=param)
