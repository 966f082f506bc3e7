"""The `messages` of a chat: validated in llama-server's words, content flattened to text."""

from collections.abc import Mapping
from typing import Any

from gateway.api.openai.parts import MARKER, join_parts
from gateway.api.openai.tool_calls import read_calls
from protocol.errors import InvalidRequest

_MEDIA = frozenset({"input_video", "video_url", "file", "refusal"})


def read_messages(body: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Read a list of messages; none at all is allowed, as in llama-server."""
    messages = body.get("messages")
    if messages is None:
        raise InvalidRequest("'messages' is required", param="messages")
    if not isinstance(messages, list):
        raise InvalidRequest("Expected 'messages' to be an array", param="messages")
    return tuple(_message(message, f"messages[{i}]") for i, message in enumerate(messages))


def _message(message: Any, path: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidRequest("All non-assistant messages must contain 'content'", param=path)
    role = message.get("role")
    if not isinstance(role, str):
        raise InvalidRequest("Missing 'role' in message", param=f"{path}.role")
    calls = read_calls(message, path) if role == "assistant" else []
    if "content" not in message and not calls:
        raise InvalidRequest(_MISSING[role == "assistant"], param=f"{path}.content")
    for key in ("reasoning_content", "name", "tool_call_id"):
        if not isinstance(message.get(key), str | None):
            problem = f"Field '{path}.{key}': must be a string"
            raise InvalidRequest(problem, param=f"{path}.{key}")
    known = {key: value for key, value in message.items() if value is not None}
    known["content"] = _content(message.get("content"), f"{path}.content")
    # Templates ask whether there is a field, not whether it holds something.
    known.pop("tool_calls", None)
    return known | ({"tool_calls": calls} if calls else {})


_MISSING = {
    False: "All non-assistant messages must contain 'content'",
    True: "Assistant message must contain either 'content' or 'tool_calls'!",
}


def read_begun(body: Mapping[str, Any]) -> str:
    """Return what an answer begins with that is gone on with: its parts stand further apart."""
    index = len(body["messages"]) - 1
    path = f"messages[{index}].content"
    return _content(body["messages"][index].get("content"), path, between="\n\n")


def _content(content: Any, path: str, *, between: str = "\n") -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest("Expected 'content' to be a string or an array", param=path)
    return join_parts([_part(part, f"{path}[{i}]") for i, part in enumerate(content)], between)


def _part(part: Any, path: str) -> tuple[str, str]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", MARKER):
        text = part.get("text")
        if isinstance(text, str):
            return kind, text
        raise InvalidRequest(f"Field '{path}.text': must be a string", param=f"{path}.text")
    if kind in _MEDIA:
        message = f"Field '{path}.type': {kind} input is not supported yet"
        raise InvalidRequest(message, param=f"{path}.type")
    raise InvalidRequest("unsupported content[].type", param=f"{path}.type")
