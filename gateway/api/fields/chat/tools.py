"""The tools of a chat and the choice among them, checked in llama-server's words.

A tool is what templates read, `{"type": "function", "function": {…}}`; the choice is `auto`,
`none`, `required` or `function:NAME`. Each dialect reads its own fields and says where they stand.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from protocol.errors import InvalidRequest
from protocol.wire.schema import wrong_type

MAX_NAME = 256
"""Characters of a tool's name."""

_WORDS = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
"""The words of a choice; `any` is Mistral's."""

Tool = dict[str, Any]


class ToolUse(NamedTuple):
    """What a request says about tools."""

    tools: tuple[Tool, ...] = ()
    choice: str = "auto"
    parallel: bool | None = None
    """Whether one answer may hold several calls; None is what `parallel_tool_calls` says."""


def read_function(function: Mapping[str, Any], path: str) -> Tool:
    """Return the tool of a described function; raises `InvalidRequest` naming what is in `path`."""
    name = function.get("name")
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_NAME:
        message = f"the name must be a string of 1 to {MAX_NAME} printable characters"
        raise tools_refusal(message, f"{path}.name")
    if not isinstance(function.get("description", ""), str | None):
        raise tools_refusal("the description must be a string", f"{path}.description")
    if not isinstance(function.get("parameters", {}), dict | None):
        raise tools_refusal("the parameters must be an object", f"{path}.parameters")
    known = {key: value for key, value in function.items() if value is not None}
    return {"type": "function", "function": known}


def read_choice_word(word: Any, tools: Sequence[Tool], *, has_skipped: bool = False) -> str:
    """Read a choice that is a word; null is `auto`.

    No call is required if `has_skipped` tools were all: the client cannot know that.
    """
    if word is None:
        return "auto"
    if not isinstance(word, str):
        raise wrong_type("tool_choice", "string or object", word)
    if word not in _WORDS:
        raise InvalidRequest(f"Invalid tool_choice: {word}", param="tool_choice")
    if _WORDS[word] == "required" and not tools:
        if has_skipped:
            return "auto"
        message = "Invalid tool_choice: a call is required, but there are no tools"
        raise InvalidRequest(message, param="tool_choice")
    return _WORDS[word]


def read_choice_name(name: Any, tools: Sequence[Tool], choice: Any, path: str) -> str:
    """Read the name of the chosen tool, which stands at `path` in `choice`."""
    if not isinstance(name, str):
        raise InvalidRequest(f"Invalid tool_choice: {shown(choice)}", param="tool_choice")
    if name not in {tool["function"]["name"] for tool in tools}:
        message = f"Invalid tool_choice: no tool is named {shown(name)}"
        raise InvalidRequest(message, param=path)
    return f"function:{name}"


def only_allowed(tools: Sequence[Tool], listed: Any, path: str) -> tuple[Tool, ...]:
    """Return the tools that OpenAI's choice `allowed_tools` names, in a list at `path`."""
    if not isinstance(listed, list):
        raise InvalidRequest(f"Field '{path}': must be an array", param=path)
    named = (entry.get("name") for entry in listed if isinstance(entry, dict))
    names = {name for name in named if isinstance(name, str)}
    return tuple(tool for tool in tools if tool["function"]["name"] in names)


def check_tool_use(body: Mapping[str, Any], choice: str, *, streams_log_probs: bool) -> None:
    """Refuse what does not go together with tools."""
    if choice != "none" and body.get("grammar"):
        message = "Cannot use custom grammar constraints with tools."
        raise InvalidRequest(message, param="grammar")
    if streams_log_probs:
        message = "logprobs is not supported with tools + stream"
        raise InvalidRequest(message, param="logprobs")


def shown(value: Any) -> str:
    """Write a value into a message, cut to 200 characters."""
    return orjson.dumps(value).decode()[:200]


def tools_refusal(problem: str, param: str) -> InvalidRequest:
    """Build the complaint about a list of tools."""
    return InvalidRequest(f"Failed to parse tools: {problem}", param=param)
