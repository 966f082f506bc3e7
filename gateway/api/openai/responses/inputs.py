"""The `input` of /v1/responses: its items, turned into the messages of a chat.

Items of one assistant turn (thoughts, text, calls) become one message, as in llama-server. What a
message may hold is for `gateway.api.openai.messages` to say; here stands only what an item may be.
"""

from collections.abc import Callable, Mapping
from typing import Any

from protocol.errors import InvalidRequest

Message = dict[str, Any]

_ROLES: Mapping[str, str] = {
    "user": "user",
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
}
"""llama-server shows a developer's words to the model as the system's."""

_TEXTS: Mapping[str, str] = {
    "input_text": "text",
    "output_text": "text",
    "reasoning_text": "text",
    "summary_text": "text",
    "text": "text",
    "refusal": "refusal",
}
"""Type of a part -> where its text stands."""


def read_input(body: Mapping[str, Any]) -> list[Message]:
    """Read `instructions` and `input`; raises `InvalidRequest` in llama-server's words."""
    value = body.get("input")
    if value is None:
        raise InvalidRequest("'input' is required", param="input")
    messages = _instructions(body.get("instructions"))
    if isinstance(value, str):
        return [*messages, {"role": "user", "content": value}]
    if not isinstance(value, list):
        raise InvalidRequest("'input' must be a string or array of objects", param="input")
    for i, item in enumerate(value):
        _add(messages, item, f"input[{i}]")
    return messages


def _instructions(value: Any) -> list[Message]:
    if value is None:
        return []
    if not isinstance(value, str):
        raise InvalidRequest("Field 'instructions': must be a string", param="instructions")
    return [{"role": "system", "content": value}]


def _add(messages: list[Message], item: Any, path: str) -> None:
    kind = item.get("type") if isinstance(item, dict) else None
    if isinstance(item, dict) and kind is None and "role" in item:
        kind = "message"
    read = _ITEMS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise InvalidRequest("Cannot determine type of 'item'", param=path)
    read(messages, item, path)


def _message(messages: list[Message], item: Message, path: str) -> None:
    role = _ROLES.get(item["role"]) if isinstance(item.get("role"), str) else None
    if role is None:
        raise InvalidRequest("Cannot determine type of 'item'", param=f"{path}.role")
    content = _parts(item.get("content"), f"{path}.content")
    if role != "assistant":
        messages.append({"role": role, "content": content})
        return
    turn = _turn(messages)
    turn["content"] = [*turn["content"], *content]


def _call(messages: list[Message], item: Message, path: str) -> None:
    function = {key: _text(item, key, path) for key in ("name", "arguments")}
    call = {"id": _text(item, "call_id", path), "type": "function", "function": function}
    _turn(messages).setdefault("tool_calls", []).append(call)


def _output(messages: list[Message], item: Message, path: str) -> None:
    call_id = _text(item, "call_id", path)
    content = _parts(item.get("output"), f"{path}.output")
    messages.append({"role": "tool", "tool_call_id": call_id, "content": content})


def _reasoning(messages: list[Message], item: Message, path: str) -> None:
    """Take the thoughts, or else their summary; encrypted ones are OpenAI's to read."""
    parts: list[dict[str, Any]] = []
    for key in ("content", "summary"):
        if not parts and item.get(key) is not None:
            parts = _parts(item[key], f"{path}.{key}")
    if parts:
        turn = _turn(messages)
        thoughts = "".join(part["text"] for part in parts if "text" in part)
        turn["reasoning_content"] = turn.get("reasoning_content", "") + thoughts


def _stored(messages: list[Message], item: Message, path: str) -> None:
    message = f"Field '{path}': item_reference is not supported: no items are stored"
    raise InvalidRequest(message, param=path)


_ITEMS: Mapping[str, Callable[[list[Message], Message, str], None]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _output,
    "reasoning": _reasoning,
    "item_reference": _stored,
}


def _turn(messages: list[Message]) -> Message:
    """Return the assistant's message at the end, or begin one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": []})
    return messages[-1]


def _parts(content: Any, path: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise InvalidRequest(f"Field '{path}': must be a string or an array", param=path)
    return [_part(part, f"{path}[{i}]") for i, part in enumerate(content)]


def _part(part: Any, path: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _TEXTS:
        return {"type": "text", "text": _text(part, _TEXTS[kind], path)}
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": _text(part, "image_url", path)}}
    if kind in ("input_file", "input_audio"):
        message = f"Field '{path}.type': {kind} is not supported yet"
        raise InvalidRequest(message, param=f"{path}.type")
    message = "'type' must be one of 'input_text', 'input_image', or 'input_file'"
    raise InvalidRequest(message, param=f"{path}.type")


def _text(item: Mapping[str, Any], key: str, path: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise InvalidRequest(f"Field '{path}.{key}': must be a string", param=f"{path}.{key}")
    return value
