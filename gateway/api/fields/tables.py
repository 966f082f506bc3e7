"""Every field of every endpoint with its bound: one table for each kind of body.

Sampling fields are declared in `protocol/wire/sampling.py`. Validation, the OpenAPI document and
the pages are made from these tables. A free-form value is bounded as a whole and passed on.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import cast

from gateway.api.fields.structures import (
    CONTENT_PARTS,
    DATA,
    FUNCTIONS,
    MESSAGES,
    METADATA,
    MIXED,
    OUTPUT_CONFIG,
    PROMPTS,
    RESPONSE_FORMAT,
    SCHEMA,
    SYSTEM_PROMPT,
    TEMPLATE_VARIABLES,
    TEXT,
    TOOL_CHOICE,
    TOOLS,
    WORD,
)
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import describe, shape_of
from protocol.wire.shapes import (
    CONTEXT_CHARS,
    CONTEXT_TOKENS,
    FLOAT32_MAX,
    INT32_MAX,
    Clamp,
    Either,
    Entries,
    Fields,
    FieldShape,
    Flag,
    Free,
    Items,
    Number,
    Several,
    TextShape,
    Token,
)

Table = Mapping[str, FieldShape]

_FLAG = Flag()
_NAME = TextShape(most=256)
_MODEL = TextShape(most=4096)
_SESSION = TextShape(most=1024)
_TOP = Number(low=0, high=1024, clamps=Clamp.BOTH)
_COUNT = Number(low=0, high=INT32_MAX)
_PROMPT_TEXT = TextShape(most=CONTEXT_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Body:
    """One kind of request body."""

    doc: str
    fields: Table = field(default_factory=dict)
    has_sampling: bool = False
    """It also has the fields of `protocol/wire/sampling.py`."""
    required: tuple[str, ...] = ()


_ORIGIN: Table = {
    "cache_salt": _SESSION,
    "prompt_cache_key": _SESSION,
    "session_id": _SESSION,
    "user": _SESSION,
    "metadata": METADATA,
    "priority": Number(low=-INT32_MAX - 1, high=INT32_MAX),
}
"""Fields that tell where a request comes from and how urgent it is (`gateway/pool/routing/`)."""
SHARED: Table = {
    **_ORIGIN,
    "model": _MODEL,
    "json_schema": SCHEMA,
    "sse_ping_interval": Number(low=-1, high=INT32_MAX),
    "verbose": _FLAG,
    "tokenize": _FLAG,
}
_TOOL_FIELDS: Table = {
    "tools": TOOLS,
    "tool_choice": TOOL_CHOICE,
    "parallel_tool_calls": _FLAG,
}
_USAGE: Table = {"stream_options": Fields({"include_usage": _FLAG})}
_MEDIA_DATA: Table = {
    "image_data": Items(
        Fields(
            {
                "id": Number(low=-(2**63), high=2**64 - 1),
                "data": TextShape(most="image_chars", is_medium=True),
            }
        ),
        "images",
    ),
}
_CHAT: Table = {
    **SHARED,
    **_TOOL_FIELDS,
    "response_format": RESPONSE_FORMAT,
    "chat_template_kwargs": TEMPLATE_VARIABLES,
    "reasoning_effort": WORD,
    "continue_final_message": Either((_FLAG, WORD)),
    "add_generation_prompt": _FLAG,
    "top_logprobs": _TOP,
    "echo": _FLAG,
    "functions": FUNCTIONS,
    "function_call": TOOL_CHOICE,
}
"""Fields of the chats of all dialects (`gateway/api/chat_request.py`)."""

BODIES: Mapping[str, Body] = {
    "Completion": Body(
        doc="llama-server's completion.",
        has_sampling=True,
        fields={
            **SHARED,
            **_MEDIA_DATA,
            "prompt": PROMPTS,
            "system_prompt": SYSTEM_PROMPT,
        },
        required=("prompt",),
    ),
    "Infill": Body(
        doc="A completion between two texts.",
        has_sampling=True,
        fields={
            **SHARED,
            **_MEDIA_DATA,
            "input_prefix": Either((_PROMPT_TEXT, MIXED)),
            "input_suffix": Either((_PROMPT_TEXT, MIXED)),
            "input_extra": Items(
                Fields({"filename": TextShape(most=4096), "text": TEXT}), "messages"
            ),
            "prompt": _PROMPT_TEXT,
        },
    ),
    "TextCompletion": Body(
        doc="OpenAI's completion, with llama-server's fields.",
        has_sampling=True,
        fields={
            **SHARED,
            **_USAGE,
            **_MEDIA_DATA,
            "prompt": PROMPTS,
            "echo": _FLAG,
            "suffix": _PROMPT_TEXT,
            "best_of": Number(low=1, high=128),
            "logprobs": _TOP,
        },
        required=("prompt",),
    ),
    "ChatCompletion": Body(
        doc="OpenAI's chat completion, with llama-server's fields.",
        has_sampling=True,
        fields={**_CHAT, **_USAGE, "messages": MESSAGES, "logprobs": _FLAG},
        required=("messages",),
    ),
    "Response": Body(
        doc="OpenAI's response.",
        has_sampling=True,
        fields={
            **_CHAT,
            **_USAGE,
            "input": Either((TEXT, MESSAGES)),
            "instructions": TEXT,
            "max_output_tokens": Number(low=-1, high=INT32_MAX),
            "reasoning": Fields({"effort": WORD, "summary": WORD}),
            "text": Fields({"format": RESPONSE_FORMAT, "verbosity": WORD}),
            "include": Items(_NAME, 64),
            "logprobs": _FLAG,
        },
        required=("input",),
    ),
    "Message": Body(
        doc="Anthropic's message.",
        has_sampling=True,
        fields={
            **_CHAT,
            **_USAGE,
            "messages": MESSAGES,
            "system": Either((TEXT, CONTENT_PARTS)),
            "stop_sequences": Items(TextShape(most="stop_chars"), "stops"),
            "thinking": Fields({"type": WORD, "budget_tokens": _COUNT}),
            "output_config": OUTPUT_CONFIG,
            "logprobs": _FLAG,
        },
        required=("messages",),
    ),
    "Tokenize": Body(
        doc="Text, or texts and tokens mixed.",
        fields={
            "model": _MODEL,
            "content": Either((_PROMPT_TEXT, MIXED)),
            "add_special": _FLAG,
            "parse_special": _FLAG,
            "with_pieces": _FLAG,
        },
    ),
    "Detokenize": Body(
        doc="Tokens.", fields={"model": _MODEL, "tokens": Items(Token(), CONTEXT_TOKENS)}
    ),
    "Embedding": Body(
        doc="What to embed: `input` or `content`.",
        fields={
            "model": _MODEL,
            "input": PROMPTS,
            "content": PROMPTS,
            "encoding_format": WORD,
            "embd_normalize": Number(low=-1, high=INT32_MAX),
            "dimensions": Number(low=1, high=INT32_MAX),
            "multimodal_data": DATA,
            **_MEDIA_DATA,
        },
    ),
    "Rerank": Body(
        doc="A query and what to rank by it: `documents` or `texts`.",
        fields={
            "model": _MODEL,
            "query": _PROMPT_TEXT,
            "documents": Several(Either((_PROMPT_TEXT, Fields({"text": _PROMPT_TEXT})))),
            "texts": Several(Either((_PROMPT_TEXT, Fields({"text": _PROMPT_TEXT})))),
            "top_n": _COUNT,
            "return_text": _FLAG,
            "return_documents": _FLAG,
        },
        required=("query",),
    ),
    "SlotAction": Body(
        doc="The file to save to or restore from.",
        fields={**_ORIGIN, "filename": TextShape(most=4096)},
    ),
    "ChatControl": Body(
        doc="What to do to an answer that is running.",
        fields={"id": _NAME, "action": WORD},
        required=("id", "action"),
    ),
    "StreamLookup": Body(
        doc="The conversations whose streams are asked for.",
        fields={"conversation_ids": Items(_SESSION, "inputs")},
    ),
    "Adapters": Body(
        doc="The scales of adapters; an adapter that is not named gets 0.",
        fields={
            "": Items(
                Fields(
                    {
                        "id": _COUNT,
                        "scale": Number(
                            low=-FLOAT32_MAX,
                            high=FLOAT32_MAX,
                            clamps=Clamp.BOTH,
                            whole=False,
                        ),
                    }
                ),
                "adapters",
            )
        },
    ),
    "Predictions": Body(
        doc="Requests of other endpoints, each within the bounds of its endpoint.",
        fields={"instances": Items(Fields({"@requestFormat": WORD}), 128)},
        required=("instances",),
    ),
    "Props": Body(doc="Properties to change; there are none."),
    "WorkerOrder": Body(
        doc="Which worker, and whether also if it is the only one of its model.",
        fields={"worker": _NAME, "force": _FLAG},
        required=("worker",),
    ),
    "Rollout": Body(
        doc="How the workers change; nothing: they are started anew as they are configured.",
        fields={
            "config": _MODEL,
            "options": Entries(Free(8, 65536), 256),
            "golden": Items(
                Fields({"prompt": TextShape(most=65536), "answer": TextShape(most=65536)}), 16
            ),
            "only_changed": _FLAG,
            "surge": WORD,
        },
    ),
    "RolloutEnd": Body(doc="Nothing: there is one rolling change at most."),
    "ModelOrder": Body(doc="Which model.", fields={"model": _MODEL}, required=("model",)),
}

HEADERS: Table = {
    "x-session-id": _SESSION,
    "x-session-affinity": _SESSION,
    "x-conversation-id": _SESSION,
    "x-litellm-session-id": _SESSION,
    "x-request-timeout": WORD,
    "x-slo-ttft-ms": WORD,
    "x-priority": WORD,
}
"""Headers whose value is read; `header_kib` bounds all headers together."""

QUERIES: Table = {
    "model": _MODEL,
    "autoload": WORD,
    "reload": WORD,
    "limit": WORD,
    "after_id": _MODEL,
    "before_id": _MODEL,
    "action": WORD,
    "legacy": WORD,
    "fail_on_no_slot": WORD,
    "include_slots": WORD,
    "by": WORD,
    "from": WORD,
    "conv_id": _MODEL,
    "to": WORD,
    "key": _MODEL,
    "state": WORD,
}
"""Query parameters of all endpoints."""

PATHS: Table = {"id": _MODEL, "id_slot": Number(low=0, high=999_999_999)}
"""Parameters in paths."""


@cache
def fields_of(body: Body) -> Table:
    """Return all fields of a body, under all their names."""
    table: dict[str, FieldShape] = {}
    for row in describe(cast(Hashable, SamplingParams)) if body.has_sampling else ():
        table |= dict.fromkeys((row.name, *row.spec.aliases), shape_of(row))
    table.update(body.fields)
    return table
