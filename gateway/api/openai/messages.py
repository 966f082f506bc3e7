"""The `messages` of a chat completion, checked in llama-server's words."""

from collections.abc import Mapping
from typing import Any

from gateway.api.fields.chat.conversation import ChatMedia, ChatMessage, Part, require_messages
from gateway.api.fields.chat.parts import read_part
from gateway.api.fields.options import optional_string
from gateway.api.openai.functions import EarlierCalls
from gateway.api.openai.tools import read_calls
from protocol.errors import InvalidRequest

_OWN = frozenset({"role", "content", "tool_calls", "function_call"})
"""What `ChatMessage` has fields for; the template reads all others as they came."""

_MISSING = {
    False: "All non-assistant messages must contain 'content'",
    True: "Assistant message must contain either 'content' or 'tool_calls'!",
}


def read_messages(body: Mapping[str, Any], media: ChatMedia) -> tuple[ChatMessage, ...]:
    """Read a list of messages."""
    messages, earlier = require_messages(body.get("messages")), EarlierCalls()
    return tuple(_message(message, i, earlier, media) for i, message in enumerate(messages))


def _message(message: Any, i: int, earlier: EarlierCalls, media: ChatMedia) -> ChatMessage:
    path = f"messages[{i}]"
    if not isinstance(message, dict):
        raise InvalidRequest("All non-assistant messages must contain 'content'", param=path)
    role, more, calls = message.get("role"), {}, []
    if role == "function":
        role, more = "tool", {"tool_call_id": earlier.read_result_id(message, i)}
    elif message.get("function_call") is not None:
        calls = [earlier.read_call(message, i)]
    elif role == "assistant":
        calls = read_calls(message, path)
    if not isinstance(role, str):
        raise InvalidRequest("Missing 'role' in message", param=f"{path}.role")
    is_assistant = role == "assistant"
    if not ("content" in message or calls or (is_assistant and "tool_calls" in message)):
        raise InvalidRequest(_MISSING[is_assistant], param=f"{path}.content")
    for key in ("reasoning_content", "name", "tool_call_id"):
        optional_string(message.get(key), f"{path}.{key}")
    extra = {key: value for key, value in message.items() if value is not None and key not in _OWN}
    content = _content(message.get("content"), f"{path}.content", media)
    return ChatMessage(role=role, content=content, extra=extra | more, tool_calls=calls)


def _content(content: Any, path: str, media: ChatMedia) -> str | list[Part]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest("Expected 'content' to be a string or an array", param=path)
    return [read_part(part, f"{path}[{i}]", media) for i, part in enumerate(content)]
