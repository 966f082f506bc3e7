"""The `input` of /v1/responses: its items, read as the messages of a chat.

The items of one assistant turn (reasoning, text, calls) become one message, as in llama-server.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gateway.api.fields.chat.conversation import ChatMedia, ChatMessage, Part, tool_call
from gateway.api.fields.options import optional_string, require_parts, require_string
from protocol.errors import InvalidRequest

Item = Mapping[str, Any]

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


def read_input(body: Mapping[str, Any], media: ChatMedia) -> tuple[ChatMessage, ...]:
    """Read `instructions` and `input`; raises `InvalidRequest` in llama-server's words."""
    value = body.get("input")
    if value is None:
        raise InvalidRequest("'input' is required", param="input")
    conversation = _ReadItems(_instructions(body.get("instructions")), media)
    if isinstance(value, str):
        conversation.messages.append(ChatMessage(role="user", content=value))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            conversation.read(item, f"input[{i}]")
    else:
        raise InvalidRequest("'input' must be a string or array of objects", param="input")
    return tuple(conversation.messages)


def _instructions(value: Any) -> list[ChatMessage]:
    text = optional_string(value, "instructions")
    return [] if text is None else [ChatMessage(role="system", content=text)]


class _ReadItems:
    """The messages that the items read so far make."""

    def __init__(self, messages: list[ChatMessage], media: ChatMedia) -> None:
        self.messages = messages
        self._media = media

    def read(self, item: Any, path: str) -> None:
        """Read one item."""
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(item, dict) and kind is None and "role" in item:
            kind = "message"
        read = _READERS.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise InvalidRequest("Cannot determine type of 'item'", param=path)
        read(self, item, path)

    def message(self, item: Item, path: str) -> None:
        role = _ROLES.get(item["role"]) if isinstance(item.get("role"), str) else None
        if role is None:
            raise InvalidRequest("Cannot determine type of 'item'", param=f"{path}.role")
        content = item.get("content")
        if content is None and role == "assistant":
            content = []  # as in llama-server; an answer that only called tools
        parts = _parts(content, f"{path}.content", self._media)
        if role == "assistant":
            turn = self._turn()
            turn.content = [*turn.content, *parts] if isinstance(turn.content, list) else parts
        else:
            self.messages.append(ChatMessage(role=role, content=parts))

    def call(self, item: Item, path: str) -> None:
        name, arguments = (require_string(item, key, path) for key in ("name", "arguments"))
        call = tool_call(name, arguments, require_string(item, "call_id", path))
        self._turn().tool_calls.append(call)

    def output(self, item: Item, path: str) -> None:
        call_id = {"tool_call_id": require_string(item, "call_id", path)}
        parts = _parts(item.get("output"), f"{path}.output", self._media)
        self.messages.append(ChatMessage(role="tool", content=parts, extra=call_id))

    def reasoning(self, item: Item, path: str) -> None:
        """Read the reasoning, or else its summary; only OpenAI can read an encrypted one."""
        key = "content" if item.get("content") else "summary"
        texts = [] if item.get(key) is None else _reasoning_texts(item[key], f"{path}.{key}")
        if texts:
            extra = self._turn().extra
            extra["reasoning_content"] = extra.get("reasoning_content", "") + "".join(texts)

    def stored(self, item: Item, path: str) -> None:
        message = f"Field '{path}': item_reference is not supported: no items are stored"
        raise InvalidRequest(message, param=path)

    def _turn(self) -> ChatMessage:
        """Return the assistant's message at the end, or begin one."""
        if not self.messages or self.messages[-1].role != "assistant":
            self.messages.append(ChatMessage(role="assistant", content=[]))
        return self.messages[-1]


_READERS: Mapping[str, Callable[[_ReadItems, Item, str], None]] = {
    "message": _ReadItems.message,
    "function_call": _ReadItems.call,
    "function_call_output": _ReadItems.output,
    "reasoning": _ReadItems.reasoning,
    "item_reference": _ReadItems.stored,
}


def _parts(content: Any, path: str, media: ChatMedia) -> list[Part]:
    if isinstance(content, str):
        return [media.text(content)]
    parts = require_parts(content, path)
    return [_part(part, f"{path}[{i}]", media) for i, part in enumerate(parts)]


def _reasoning_texts(content: Any, path: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = require_parts(content, path)
    return [_reasoning_text(part, f"{path}[{i}]") for i, part in enumerate(parts)]


def _reasoning_text(part: Any, path: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _TEXTS:
        return require_string(part, _TEXTS[kind], path)
    raise _unsupported(kind, path)


def _part(part: Any, path: str, media: ChatMedia) -> Part:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _TEXTS:
        return media.text(require_string(part, _TEXTS[kind], path))
    if kind == "input_image":
        return media.image(require_string(part, "image_url", path), f"{path}.image_url")
    raise _unsupported(kind, path)


def _unsupported(kind: Any, path: str) -> InvalidRequest:
    message = "'type' must be one of 'input_text', 'input_image', or 'input_file'"
    if kind in ("input_file", "input_audio"):
        message = f"Field '{path}.type': {kind} is not supported yet"
    return InvalidRequest(message, param=f"{path}.type")
