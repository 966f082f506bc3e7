"""Documents, results of searches and references to tools in Anthropic's messages, read as text."""

from collections.abc import Callable, Mapping
from typing import Any

from gateway.api.fields.options import require_parts, require_string
from protocol.errors import InvalidRequest

Block = Mapping[str, Any]


def _document(block: Block, path: str) -> str:
    """Return title, context and text; a PDF or a file is none."""
    heads = [require_string(block, key, path) for key in ("title", "context") if block.get(key)]
    path, source = f"{path}.source", block.get("source")
    if not isinstance(source, dict):
        raise InvalidRequest(f"Field '{path}': must be an object", param=path)
    if source.get("type") == "text":
        return "\n".join([*heads, require_string(source, "data", path)])
    if source.get("type") == "content":
        return "\n".join([*heads, *_texts(source.get("content"), f"{path}.content")])
    message = f"Field '{path}.type': must be text or content"
    raise InvalidRequest(message, param=f"{path}.type")


def _search_result(block: Block, path: str) -> str:
    heads = [require_string(block, key, path) for key in ("title", "source")]
    return "\n".join([*heads, *_texts(block.get("content"), f"{path}.content")])


def _tool_reference(block: Block, path: str) -> str:
    return require_string(block, "tool_name", path)


def _texts(content: Any, path: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    blocks = require_parts(content, path)
    return [read_text_block(block, f"{path}[{i}]") for i, block in enumerate(blocks)]


def read_text_block(block: Any, path: str) -> str:
    """Return the text of a block that must be one of text; raises `InvalidRequest`."""
    if not isinstance(block, dict) or block.get("type") != "text":
        raise InvalidRequest(f"Field '{path}.type': must be text", param=f"{path}.type")
    return require_string(block, "text", path)


READERS: Mapping[str, Callable[[Block, str], str]] = {
    "document": _document,
    "search_result": _search_result,
    "tool_reference": _tool_reference,
}
"""Type of a block -> what gives its text."""
