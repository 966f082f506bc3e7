"""The shapes of nested request fields: messages, tools, formats, prompts."""

from dataclasses import dataclass
from typing import Any

from protocol.wire.shapes import (
    CONTEXT_BYTES,
    CONTEXT_TOKENS,
    Bounds,
    Either,
    Entries,
    Fields,
    FieldShape,
    Flag,
    Free,
    Items,
    Kinds,
    Several,
    TextShape,
    Token,
    refusal,
)


@dataclass(frozen=True, slots=True)
class Upload(FieldShape):
    """A file of a form, a medium of the prompt."""

    def check(self, value: Any, path: str, bounds: Bounds) -> None:
        """Raise `TaskError` if the file is larger than an image may be."""
        if not isinstance(value, bytes):
            return
        n_most = int(bounds["image_bytes"]) * 3 // 4
        if len(value) > n_most:
            raise refusal(path, f"at most {n_most} bytes, but got {len(value)}")
        bounds.count_media(path)

    def describe(self) -> str:
        """Write down the largest size."""
        return "three quarters of `image_mib`"


WORD = TextShape(max_length=256)
"""A text that is compared with a few known words."""
NAME = TextShape(max_length=256)
"""The name of a tool, a worker or an answer."""
CALL_ID = TextShape(max_length=64 * 1024, counts=True)
"""The id of a call or an item: proxies put signatures of reasoning into it, of some KiB each. It
counts as text of the prompt, because templates may write it."""
TEXT = TextShape(max_length=CONTEXT_BYTES, counts=True)
"""A text of a prompt; all texts of a prompt together have the bound of one."""

_DATA = TextShape(max_length="image_bytes", is_medium=True)
DATA = Items(_DATA, "images")
_REST = Free("depth", CONTEXT_BYTES, counts=True)
"""Fields of other names, which a chat template may read."""
_FLAG = Flag()

SCHEMA = Free("schema_depth", "schema_bytes")
TEMPLATE_VARIABLES = Free("depth", "template_bytes")
METADATA = Entries(Free("depth", 4096), 64)

_TEXT_BLOCKS = Either((TEXT, Items(Fields({"type": WORD, "text": TEXT}, _REST), "messages")))
_SOURCE = Kinds(
    {
        "text": Fields({"type": WORD, "media_type": WORD, "data": TEXT}),
        "content": Fields({"type": WORD, "content": _TEXT_BLOCKS}),
    },
    Fields({"type": WORD, "media_type": WORD, "data": _DATA, "url": _DATA}),
)
"""What an image or a document is made of; that of a search's result is a text."""
_PLAIN_PARTS = Items(
    Fields(
        {
            "type": WORD,
            "text": TEXT,
            "refusal": TEXT,
            "source": Either((TEXT, _SOURCE)),
            "content": _TEXT_BLOCKS,
        },
        _REST,
    ),
    "messages",
)
CONTENT_PARTS = Items(
    Fields(
        {
            "type": WORD,
            "text": TEXT,
            "refusal": TEXT,
            "thinking": TEXT,
            "image_url": Either((_DATA, Fields({"url": _DATA, "detail": WORD}))),
            "input_audio": Fields({"data": _DATA, "url": _DATA, "format": WORD}),
            "source": Either((TEXT, _SOURCE)),
            "id": CALL_ID,
            "name": NAME,
            "tool_use_id": CALL_ID,
            "input": _REST,
            "content": Either((TEXT, _PLAIN_PARTS)),
        },
        _REST,
    ),
    "messages",
)
_FUNCTION_CALL = Fields({"name": NAME, "arguments": Either((TEXT, _REST))})
MESSAGES = Items(
    Fields(
        {
            "role": WORD,
            "type": WORD,
            "content": Either((TEXT, CONTENT_PARTS)),
            "reasoning_content": TEXT,
            "summary": Items(Fields({"type": WORD, "text": TEXT}, _REST), "messages"),
            "name": NAME,
            "tool_call_id": CALL_ID,
            "call_id": CALL_ID,
            "id": CALL_ID,
            "arguments": TEXT,
            "output": Either((TEXT, CONTENT_PARTS)),
            "function_call": _FUNCTION_CALL,
            "tool_calls": Items(
                Fields({"id": CALL_ID, "type": WORD, "function": _FUNCTION_CALL}, _REST), 512
            ),
        },
        _REST,
    ),
    "messages",
)
"""Messages of chats and of Anthropic's API, and items of a response: no name has two meanings."""

_DESCRIPTION: dict[str, FieldShape] = {
    "name": NAME,
    "description": TEXT,
    "parameters": SCHEMA,
    "input_schema": SCHEMA,
    "strict": _FLAG,
}
TOOLS = Items(
    Fields({"type": WORD, "function": Fields(_DESCRIPTION, _REST), **_DESCRIPTION}, _REST), "tools"
)
FUNCTIONS = Items(Fields(_DESCRIPTION, _REST), "tools")
TOOL_CHOICE = Either((WORD, Free("depth", "template_bytes")))

RESPONSE_FORMAT = Fields(
    {
        "type": WORD,
        "name": NAME,
        "schema": SCHEMA,
        "json_schema": Fields({"name": NAME, "description": TEXT, "schema": SCHEMA}),
        "strict": _FLAG,
        "description": TEXT,
    }
)
OUTPUT_CONFIG = Fields({"effort": WORD, "format": Fields({"type": WORD, "schema": SCHEMA})})
SYSTEM_PROMPT = Either(
    (
        TextShape(max_length=CONTEXT_BYTES),
        Fields(
            {
                "prompt": TextShape(max_length=CONTEXT_BYTES),
                "anti_prompt": TextShape(max_length="stop_chars"),
                "assistant_name": NAME,
            }
        ),
    )
)

MIXED = Items(Either((Token(), TEXT)), CONTEXT_TOKENS)
"""Tokens and texts."""
PROMPTS = Several(
    Either(
        (
            TEXT,
            MIXED,
            Fields(
                {
                    "prompt_string": TEXT,
                    "multimodal_data": DATA,
                    "content": Items(Fields({"type": WORD, "text": TEXT}), "messages"),
                }
            ),
        )
    )
)
