"""The `messages` of a chat: validated in llama-server's words, content flattened to text."""

from collections.abc import Mapping
from typing import Any

from protocol.errors import InvalidRequest

MAX_MESSAGES = 4096

_MEDIA = frozenset({"image_url", "input_audio", "input_video", "video_url", "file", "refusal"})


def read_messages(body: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Read a list of messages; none at all is allowed, as in llama-server."""
    messages = body.get("messages")
    if messages is None:
        raise InvalidRequest("'messages' is required", param="messages")
    if not isinstance(messages, list):
        raise InvalidRequest("Expected 'messages' to be an array", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"Field 'messages': at most {MAX_MESSAGES}", param="messages")
    return tuple(_message(message, f"messages[{i}]") for i, message in enumerate(messages))


def _message(message: Any, path: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidRequest("All non-assistant messages must contain 'content'", param=path)
    role = message.get("role")
    if not isinstance(role, str):
        raise InvalidRequest("Missing 'role' in message", param=f"{path}.role")
    if role in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
        raise InvalidRequest(f"Field '{path}': tool calls are not supported yet", param=path)
    if "content" not in message:
        raise InvalidRequest(_MISSING[role == "assistant"], param=f"{path}.content")
    return {**message, "content": _content(message["content"], f"{path}.content")}


_MISSING = {
    False: "All non-assistant messages must contain 'content'",
    True: "Assistant message must contain either 'content' or 'tool_calls'!",
}


def _content(content: Any, path: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest("Expected 'content' to be a string or an array", param=path)
    return "\n".join(_part(part, f"{path}[{i}]") for i, part in enumerate(content))


def _part(part: Any, path: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        text = part.get("text")
        if isinstance(text, str):
            return text
        raise InvalidRequest(f"Field '{path}.text': must be a string", param=f"{path}.text")
    if kind in _MEDIA:
        message = f"Field '{path}.type': {kind} input is not supported yet"
        raise InvalidRequest(message, param=f"{path}.type")
    raise InvalidRequest("unsupported content[].type", param=f"{path}.type")
