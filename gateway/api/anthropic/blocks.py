"""The `system` and `messages` of Anthropic's API, read as the messages of a chat.

Content blocks become the messages that llama-server makes of them. The result of a tool is a
message of its own; the blocks of one message keep their order.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from gateway.api.anthropic import documents
from gateway.api.fields.chat.conversation import (
    ChatMedia,
    ChatMessage,
    Part,
    require_messages,
    tool_call,
)
from gateway.api.fields.chat.tools import shown
from gateway.api.fields.options import require_parts, require_string
from protocol.errors import InvalidRequest

Block = Mapping[str, Any]

_OWN_TOOLS = (
    *("web_search", "web_fetch", "tool_search", "mcp", "code_execution"),
    *("bash_code_execution", "text_editor_code_execution", "advisor"),
)
"""Tools that Anthropic's server runs; their results are in conversations that began there."""

_NOTES = (
    *("redacted_thinking", "server_tool_use", "mcp_tool_use"),
    *("mcp_tool_listing", "tool_addition", "tool_removal", "container_upload", "fallback"),
)
"""Blocks for Anthropic's server, which clients send back as they came."""

_BILLING = re.compile(r"(x-anthropic-billing-header:.*?cch=)[^;]{5};", re.DOTALL)
"""A stamp of Anthropic's own client, new in each request: with it no prefix would be cached."""


def read_system(value: Any) -> list[ChatMessage]:
    """Read the system prompt: a text, or blocks of text, which are joined without a separator."""
    if value is None:
        return []
    if isinstance(value, str):
        return [ChatMessage(role="system", content=_without_stamp(value))]
    texts = [
        _without_stamp(documents.read_text_block(block, f"system[{i}]"))
        for i, block in enumerate(require_parts(value, "system"))
    ]
    return [ChatMessage(role="system", content="".join(texts))]


def _without_stamp(text: str) -> str:
    return _BILLING.sub(r"\1fffff;", text, count=1) if text.startswith("x-anthropic-") else text


def read_messages(value: Any, media: ChatMedia) -> list[ChatMessage]:
    """Read the conversation."""
    messages: list[ChatMessage] = []
    for i, message in enumerate(require_messages(value)):
        messages += _message(message, f"messages[{i}]", media)
    return messages


def _message(message: Any, path: str, media: ChatMedia) -> list[ChatMessage]:
    if not isinstance(message, dict):
        raise InvalidRequest("All non-assistant messages must contain 'content'", param=path)
    role = require_string(message, "role", path)
    content = message.get("content")
    if content is None:
        if role == "assistant":
            return []
        text = "All non-assistant messages must contain 'content'"
        raise InvalidRequest(text, param=f"{path}.content")
    if isinstance(content, str):
        return [ChatMessage(role=role, content=content)]
    if not isinstance(content, list):
        text = "Expected 'content' to be a string or an array"
        raise InvalidRequest(text, param=f"{path}.content")
    blocks = _Blocks(role, media)
    for i, block in enumerate(content):
        blocks.read(block, f"{path}.content[{i}]")
    return blocks.messages


class _Blocks:
    """The content blocks of one message of Anthropic's."""

    def __init__(self, role: str, media: ChatMedia) -> None:
        self._role = role
        self._media = media
        self._parts: list[Part] = []
        self.messages: list[ChatMessage] = []

    def read(self, block: Any, path: str) -> None:
        """Read one block."""
        kind = block.get("type") if isinstance(block, dict) else None
        read = _READERS.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise _unknown(block, path)
        read(self, block, path)

    def _message(self) -> ChatMessage:
        """Return the message that is being read; the result of a tool ends it."""
        if not self.messages or self.messages[-1].role == "tool":
            self._parts = []
            self.messages.append(ChatMessage(role=self._role, content=self._parts))
        return self.messages[-1]

    def text(self, block: Block, path: str) -> None:
        part = self._media.text(require_string(block, "text", path))
        self._message()
        self._parts.append(part)

    def image(self, block: Block, path: str) -> None:
        part = _image(block, path, self._media)
        self._message()
        self._parts.append(part)

    def thinking(self, block: Block, path: str) -> None:
        extra = self._message().extra
        thought = require_string(block, "thinking", path)
        extra["reasoning_content"] = extra.get("reasoning_content", "") + thought

    def document(self, block: Block, path: str) -> None:
        part = self._media.text(documents.READERS[block["type"]](block, path))
        self._message()
        self._parts.append(part)

    def compaction(self, block: Block, path: str) -> None:
        """Read the summary of earlier turns; null is one that failed."""
        if block.get("content") is not None:
            self.text({"text": require_string(block, "content", path)}, path)

    def skipped(self, block: Block, path: str) -> None:
        """Skip what only Anthropic can read: hidden reasoning, and calls of tools of its own."""

    def tool_use(self, block: Block, path: str) -> None:
        arguments = orjson.dumps(block.get("input") or {}).decode()
        call = tool_call(
            require_string(block, "name", path), arguments, require_string(block, "id", path)
        )
        message = self._message()
        if message.role == "assistant":
            message.tool_calls.append(call)

    def tool_result(self, block: Block, path: str) -> None:
        call_id = {"tool_call_id": require_string(block, "tool_use_id", path)}
        content = _result(block.get("content"), f"{path}.content", self._media)
        self.messages.append(ChatMessage(role="tool", content=content, extra=call_id))


_READERS: Mapping[str, Callable[[_Blocks, Block, str], None]] = {
    "text": _Blocks.text,
    "image": _Blocks.image,
    "thinking": _Blocks.thinking,
    "tool_use": _Blocks.tool_use,
    "tool_result": _Blocks.tool_result,
    **dict.fromkeys(("document", "search_result"), _Blocks.document),
    "compaction": _Blocks.compaction,
    **dict.fromkeys(_NOTES, _Blocks.skipped),
    **dict.fromkeys([f"{tool}_tool_result" for tool in _OWN_TOOLS], _Blocks.skipped),
}


def _result(content: Any, path: str, media: ChatMedia) -> str | list[Part]:
    """Read what a tool returned; texts are joined without a separator, as in llama-server."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = require_parts(content, path)
    kinds = [part.get("type") if isinstance(part, dict) else None for part in parts]
    if "image" not in kinds:
        between = "" if all(kind == "text" for kind in kinds) else "\n"
        return between.join(_result_text(part, f"{path}[{i}]") for i, part in enumerate(parts))
    return [_result_part(part, f"{path}[{i}]", media) for i, part in enumerate(parts)]


def _result_part(part: Any, path: str, media: ChatMedia) -> Part:
    if isinstance(part, dict) and part.get("type") == "image":
        return _image(part, path, media)
    return media.text(_result_text(part, path))


def _result_text(part: Any, path: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        return require_string(part, "text", path)
    if isinstance(kind, str) and kind in documents.READERS:
        return documents.READERS[kind](part, path)
    raise _unknown(part, path)


def _unknown(block: Any, path: str) -> InvalidRequest:
    """Build the complaint about a block that is not read."""
    if not isinstance(block, dict):
        return InvalidRequest(f"Field '{path}': must be an object", param=path)
    path = f"{path}.type"
    problem = f"{shown(block['type'])} is not supported" if "type" in block else "is required"
    return InvalidRequest(f"Field '{path}': {problem}", param=path)


def _image(block: Block, path: str, media: ChatMedia) -> Part:
    path = f"{path}.source"
    source = block.get("source")
    if not isinstance(source, dict):
        raise InvalidRequest(f"Field '{path}': must be an object", param=path)
    kind = source.get("type")
    if kind == "base64":
        media_type = source.get("media_type") or "image/jpeg"
        data = f"data:{media_type};base64,{require_string(source, 'data', path)}"
        return media.image(data, f"{path}.data")
    if kind == "url":
        return media.image(require_string(source, "url", path), f"{path}.url")
    raise InvalidRequest(f"Field '{path}.type': must be base64 or url", param=f"{path}.type")
