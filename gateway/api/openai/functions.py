"""OpenAI's `functions` of 2023: tools under their old names, and calls written in their old shape.

A request that names functions gets at most one call, in `function_call` and not in `tool_calls`.
Earlier calls and results (`function_call`, role `function`) become those of tools, whether or not
the request names functions: templates know no others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.api.fields.chat.conversation import tool_call
from gateway.api.fields.chat.tools import ToolUse, read_function, shown, tools_refusal
from protocol.errors import InvalidRequest
from protocol.wire.messages import ToolCallDelta
from protocol.wire.schema import wrong_type

FIELDS = ("functions", "function_call")
_TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")


def read_functions(body: Mapping[str, Any]) -> ToolUse | None:
    """Read `functions` and `function_call`; None if the request names no functions."""
    functions, choice = (body.get(key) for key in FIELDS)
    if functions is not None and not isinstance(functions, list):
        raise wrong_type("functions", "array", functions)
    if not functions:
        if choice not in (None, "auto", "none"):
            message = "Field 'function_call': there are no functions to call"
            raise InvalidRequest(message, param="function_call")
        return None
    for key in _TOOL_FIELDS:
        if body.get(key):
            message = f"Field '{key}': cannot be used together with functions"
            raise InvalidRequest(message, param=key)
    chosen = _choice(choice, functions)
    tools = [_tool(function, f"functions[{i}]") for i, function in enumerate(functions)]
    return ToolUse(tuple(tools), chosen, parallel=False)


def _tool(function: Any, path: str) -> dict[str, Any]:
    if not isinstance(function, dict):
        raise tools_refusal(f"Missing tool function: {shown(function)}", path)
    return read_function(function, path)


def _choice(choice: Any, functions: Sequence[Any]) -> str:
    if choice is None or choice in ("auto", "none"):
        return choice or "auto"
    name = choice.get("name") if isinstance(choice, dict) else None
    if not isinstance(name, str):
        message = "Field 'function_call': must be auto, none or an object with a name"
        raise InvalidRequest(message, param="function_call")
    if not any(
        isinstance(function, dict) and function.get("name") == name for function in functions
    ):
        message = f"Field 'function_call.name': no function is named '{name[:200]}'"
        raise InvalidRequest(message, param="function_call.name")
    return f"function:{name}"


class EarlierCalls:
    """Gives the calls of functions in a conversation the ids that calls of tools have."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        """Function to the id of its last call."""

    def read_call(self, message: Mapping[str, Any], i: int) -> dict[str, Any]:
        """Read the `function_call` of message `i` as a call of a tool."""
        call, path, problem = message["function_call"], f"messages[{i}].function_call", ""
        if message.get("role") != "assistant":
            problem = "only a message of the assistant may have it"
        elif message.get("tool_calls"):
            problem = "cannot be used together with tool_calls"
        elif not isinstance(call, dict) or not isinstance(call.get("name"), str):
            problem = "must be an object with a name"
        elif not isinstance(call.get("arguments", ""), str | None):
            problem = "the arguments must be a string of JSON"
        if problem:
            raise InvalidRequest(f"Field '{path}': {problem}", param=path)
        call_id = self._ids[call["name"]] = _new_id(i)
        return tool_call(call["name"], call.get("arguments"), call_id)

    def read_result_id(self, message: Mapping[str, Any], i: int) -> str:
        """Return the id of the call whose result message `i` is."""
        name = message.get("name")
        if not isinstance(name, str):
            path = f"messages[{i}].name"
            problem = f"Field '{path}': must be the name of the function that has this result"
            raise InvalidRequest(problem, param=path)
        return self._ids.get(name, _new_id(i))


def _new_id(i: int) -> str:
    return f"call{i:05d}"  # nine letters and digits: Mistral's templates refuse other ids


def function_call(call: ToolCallDelta) -> dict[str, Any]:
    """Write a whole call."""
    return {"name": call.name, "arguments": call.arguments}


def function_call_piece(call: ToolCallDelta) -> dict[str, Any]:
    """Write a piece of a call: only the first one has the name."""
    return function_call(call) if call.name else {"arguments": call.arguments}
