"""Tools for templates without tools: explained in the system message, answered in JSON.

The texts are those of llama.cpp's generic handler.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from protocol.wire.messages import content_text

_REPLY = (
    "Respond in JSON format, either with `{key}` (a request to call tools) or with `response`"
    " reply to the user's request"
)
_ONLY_CALL = "Respond in JSON format with `{key}` (a request to call tools)"
_EXAMPLE = {
    "tool_call": {"name": "some_tool", "arguments": {"some_argument": "value"}},
    "tool_calls": [{"name": "some_tool", "arguments": {"some_argument": "value"}}],
}


def explain(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    is_parallel: bool,
    is_required: bool,
) -> list[dict[str, Any]]:
    """Put the tools into the system message, and earlier calls and results into words."""
    key = "tool_calls" if is_parallel else "tool_call"
    example = json.dumps({key: _EXAMPLE[key]}, indent=2)
    listed = json.dumps([tool["function"] for tool in tools], indent=2, ensure_ascii=False)
    form = (_ONLY_CALL if is_required else _REPLY).format(key=key)
    text = (
        "You can call any of the following tools to satisfy the user's requests:"
        f" {listed}\n\nExample tool call syntax:\n\n{example}\n\n{form}"
    )
    plain = [_plain(message) for message in messages]
    if plain and plain[0].get("role") in ("system", "developer"):
        content = f"{content_text(plain[0].get('content'))}\n\n{text}"
        return [{**plain[0], "content": content}, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    if message.get("tool_calls"):
        calls = [_call(call) for call in message["tool_calls"]]
        value: dict[str, Any] = {"tool_calls": calls}
        if message.get("content"):
            value["content"] = content_text(message["content"])
        return {"role": "assistant", "content": json.dumps(value, indent=2, ensure_ascii=False)}
    if message.get("role") == "tool":
        keys = {"name": "tool", "tool_call_id": "tool_call_id"}
        told = {new: message[old] for old, new in keys.items() if message.get(old)}
        value = {"tool_response": {**told, "content": content_text(message.get("content"))}}
        return {"role": "user", "content": json.dumps(value, indent=2, ensure_ascii=False)}
    return dict(message)


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    try:
        decoded = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        decoded = arguments
    return {"name": function.get("name"), "arguments": decoded, "id": call.get("id")}
