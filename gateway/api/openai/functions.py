"""OpenAI's `functions` of 2023: rewritten as tools, and calls written in their old shape.

A request that names functions gets at most one call, in `function_call` and not in `tool_calls`.
Earlier calls and results (`function_call`, role `function`) become those of tools, wherever they
come from: templates know no others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.api.fields.options import wrong_type
from protocol.errors import InvalidRequest
from protocol.wire.messages import ToolCallDelta

SPELLINGS: Mapping[str, str] = {"tools": "functions", "tool_choice": "function_call"}
"""A chat's field -> where it came from."""

_FIELDS = ("functions", "function_call")
_TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")

Body = Mapping[str, Any]


def as_tools(body: Body) -> tuple[Body, bool]:
    """Return the body in terms of tools, and whether it named functions; raises if it mixes."""
    body = _with_messages(body)
    functions, choice = (body.get(key) for key in _FIELDS)
    rest = {key: value for key, value in body.items() if key not in _FIELDS}
    if functions is not None and not isinstance(functions, list):
        raise wrong_type("functions", "array", functions)
    if not functions:
        if choice not in (None, "auto", "none"):
            message = "Field 'function_call': there are no functions to call"
            raise InvalidRequest(message, param="function_call")
        return rest, False
    for key in _TOOL_FIELDS:
        if body.get(key):
            message = f"Field '{key}': cannot be used together with functions"
            raise InvalidRequest(message, param=key)
    rest["tools"] = [{"type": "function", "function": function} for function in functions]
    rest["tool_choice"] = _choice(choice, functions)
    return rest | {"parallel_tool_calls": False}, True


def function_call(call: ToolCallDelta) -> dict[str, Any]:
    """Write a whole call."""
    return {"name": call.name, "arguments": call.arguments}


def function_call_piece(call: ToolCallDelta) -> dict[str, Any]:
    """Write a piece of a call: the name stands in the first one only."""
    return function_call(call) if call.name else {"arguments": call.arguments}


def _choice(choice: Any, functions: Sequence[Any]) -> Any:
    if choice is None or choice in ("auto", "none"):
        return choice
    name = choice.get("name") if isinstance(choice, dict) else None
    if not isinstance(name, str):
        message = "Field 'function_call': must be auto, none or an object with a name"
        raise InvalidRequest(message, param="function_call")
    if not any(isinstance(one, dict) and one.get("name") == name for one in functions):
        message = f"Field 'function_call.name': no function is named '{name[:200]}'"
        raise InvalidRequest(message, param="function_call.name")
    return {"type": "function", "function": {"name": name}}


def _with_messages(body: Body) -> Body:
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(map(_is_old, messages)):
        return body
    rewritten: list[Any] = []
    ids: dict[str, str] = {}
    for i, message in enumerate(messages):
        rewritten.append(_rewritten(message, i, ids) if _is_old(message) else message)
    return {**body, "messages": rewritten}


def _is_old(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    return message.get("role") == "function" or message.get("function_call") is not None


def _rewritten(message: Body, i: int, ids: dict[str, str]) -> dict[str, Any]:
    """Rewrite a call or a result; `ids` tells which call of a function was the last one."""
    path = f"messages[{i}]"
    # Nine letters and digits: Mistral's templates refuse other ids.
    new_id = f"call{i:05d}"
    rest = {key: value for key, value in message.items() if key != "function_call"}
    if message.get("role") == "function":
        name = message.get("name")
        if not isinstance(name, str):
            problem = f"Field '{path}.name': the result of a function must name it"
            raise InvalidRequest(problem, param=f"{path}.name")
        return rest | {"role": "tool", "tool_call_id": ids.get(name, new_id)}
    call, problem = message["function_call"], ""
    if message.get("role") != "assistant":
        problem = "only an assistant calls functions"
    elif message.get("tool_calls"):
        problem = "cannot stand beside tool_calls"
    elif not isinstance(call, dict) or not isinstance(call.get("name"), str):
        problem = "must be an object with a name"
    elif not isinstance(call.get("arguments", ""), str | None):
        problem = "the arguments must be a string of JSON"
    if problem:
        key = f"{path}.function_call"
        raise InvalidRequest(f"Field '{key}': {problem}", param=key)
    ids[call["name"]] = new_id
    function = {"name": call["name"], "arguments": call.get("arguments") or "{}"}
    return rest | {"tool_calls": [{"id": new_id, "type": "function", "function": function}]}
