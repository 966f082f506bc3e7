"""The `system` and `messages` of Anthropic's API: content blocks, turned into chat messages.

Blocks become the messages that llama-server makes of them. What stands in one message of the user
keeps its order, so that the result of a tool follows the call and not the words after it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from protocol.errors import InvalidRequest

Message = dict[str, Any]

_BILLING = re.compile(r"(x-anthropic-billing-header:.*?cch=)[^;]{5};", re.DOTALL)
"""A stamp of Anthropic's own client, new in each request: left in, no prefix would be cached."""


def read_system(value: Any) -> list[Message]:
    """Read the system prompt: a text, or blocks of text that follow each other."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": "system", "content": _without_stamp(value)}]
    if not isinstance(value, list):
        raise InvalidRequest("Field 'system': must be a string or an array", param="system")
    texts = [_system_text(block, f"system[{i}]") for i, block in enumerate(value)]
    return [{"role": "system", "content": "".join(texts)}]


def _system_text(block: Any, path: str) -> str:
    if not isinstance(block, dict) or block.get("type") != "text":
        message = f"Field '{path}.type': must be text"
        raise InvalidRequest(message, param=f"{path}.type")
    return _without_stamp(_string(block, "text", path))


def _without_stamp(text: str) -> str:
    return _BILLING.sub(r"\1fffff;", text, count=1) if text.startswith("x-anthropic-") else text


def read_messages(value: Any) -> list[Message]:
    """Read the conversation; none at all is allowed, as in llama-server."""
    if value is None:
        raise InvalidRequest("'messages' is required", param="messages")
    if not isinstance(value, list):
        raise InvalidRequest("Expected 'messages' to be an array", param="messages")
    messages: list[Message] = []
    for i, message in enumerate(value):
        messages += _message(message, f"messages[{i}]")
    return messages


def _message(message: Any, path: str) -> list[Message]:
    if not isinstance(message, dict):
        raise InvalidRequest("All non-assistant messages must contain 'content'", param=path)
    role = _string(message, "role", path)
    content = message.get("content")
    if content is None:
        if role == "assistant":
            return []
        text = "All non-assistant messages must contain 'content'"
        raise InvalidRequest(text, param=f"{path}.content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        text = "Expected 'content' to be a string or an array"
        raise InvalidRequest(text, param=f"{path}.content")
    turn = _Turn(role)
    for i, block in enumerate(content):
        turn.add(block, f"{path}.content[{i}]")
    return turn.messages


class _Turn:
    """One message of Anthropic's; the results of tools in it are messages of their own."""

    def __init__(self, role: str) -> None:
        self._role = role
        self.messages: list[Message] = []

    def add(self, block: Any, path: str) -> None:
        """Take in one block."""
        kind = block.get("type") if isinstance(block, dict) else None
        read = _BLOCKS.get(kind) if isinstance(kind, str) else None
        if read is None:
            message = f"Field '{path}.type': {kind or 'no type'} is not supported"
            raise InvalidRequest(message, param=f"{path}.type")
        read(self, block, path)

    def _open(self) -> Message:
        """Return the message that is being written: a result before it has ended the last one."""
        if not self.messages or self.messages[-1]["role"] == "tool":
            self.messages.append({"role": self._role, "content": []})
        return self.messages[-1]

    def text(self, block: Message, path: str) -> None:
        part = {"type": "text", "text": _string(block, "text", path)}
        self._open()["content"].append(part)

    def image(self, block: Message, path: str) -> None:
        self._open()["content"].append(_image(block, path))

    def thinking(self, block: Message, path: str) -> None:
        message = self._open()
        thought = _string(block, "thinking", path)
        message["reasoning_content"] = message.get("reasoning_content", "") + thought

    def redacted(self, block: Message, path: str) -> None:
        """Thoughts that only Anthropic can read say nothing here."""

    def tool_use(self, block: Message, path: str) -> None:
        arguments = orjson.dumps(block.get("input") or {}).decode()
        function = {"name": _string(block, "name", path), "arguments": arguments}
        call = {"id": _string(block, "id", path), "type": "function", "function": function}
        self._open().setdefault("tool_calls", []).append(call)

    def tool_result(self, block: Message, path: str) -> None:
        tool_call_id = _string(block, "tool_use_id", path)
        content = _result(block.get("content"), f"{path}.content")
        self.messages.append({"role": "tool", "tool_call_id": tool_call_id, "content": content})


_BLOCKS: Mapping[str, Callable[[_Turn, Message, str], None]] = {
    "text": _Turn.text,
    "image": _Turn.image,
    "thinking": _Turn.thinking,
    "redacted_thinking": _Turn.redacted,
    "tool_use": _Turn.tool_use,
    "tool_result": _Turn.tool_result,
}


def _result(content: Any, path: str) -> str | list[dict[str, Any]]:
    """Return what a tool gave: texts follow each other, as in llama-server."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"Field '{path}': must be a string or an array", param=path)
    parts = [_result_part(part, f"{path}[{i}]") for i, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _result_part(part: Any, path: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        return {"type": "text", "text": _string(part, "text", path)}
    if kind == "image":
        return _image(part, path)
    message = f"Field '{path}.type': {kind or 'no type'} is not supported"
    raise InvalidRequest(message, param=f"{path}.type")


def _image(block: Message, path: str) -> dict[str, Any]:
    path = f"{path}.source"
    source = block.get("source")
    if not isinstance(source, dict):
        raise InvalidRequest(f"Field '{path}': must be an object", param=path)
    kind = source.get("type")
    if kind == "base64":
        media_type = source.get("media_type") or "image/jpeg"
        url = f"data:{media_type};base64,{_string(source, 'data', path)}"
    elif kind == "url":
        url = _string(source, "url", path)
    else:
        raise InvalidRequest(f"Field '{path}.type': must be base64 or url", param=f"{path}.type")
    return {"type": "image_url", "image_url": {"url": url}}


def _string(block: Mapping[str, Any], key: str, path: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise InvalidRequest(f"Field '{path}.{key}': must be a string", param=f"{path}.{key}")
    return value
