"""What the OpenAPI document says of endpoints and bodies beyond the declared fields.

One row an endpoint, one a kind of body. A structure that is read by hand is described as far as it
is checked: its inner fields are the reader's business.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Schema = dict[str, Any]

_STREAM = ("application/json", "text/event-stream")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one path."""

    summary: str
    body: str = ""
    """A name in `BODIES`; empty is none."""
    kinds: tuple[str, ...] = ("application/json",)
    """Media types of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """One kind of request body."""

    doc: str
    has_sampling: bool = False
    """Whether the fields of `protocol/sampling.py` belong to it."""
    properties: Mapping[str, Schema] = field(default_factory=dict)
    required: tuple[str, ...] = ()


def _nullable(kind: str, **more: Any) -> Schema:
    return {"type": [kind, "null"], **more}


_TEXT = _nullable("string")
_FLAG = _nullable("boolean")
_OBJECT = _nullable("object")
_LIST = _nullable("array", items={})
_MODEL = _nullable("string", description="Which model; any name will do if there is only one.")
_TOKENS: Schema = {"type": "array", "items": {"type": "integer"}}
_MIXED: Schema = {"type": "array", "items": {"type": ["string", "integer"]}}
_TEXT_OR_MIXED: Schema = {"anyOf": [{"type": "string"}, _MIXED]}
_PROMPT: Schema = {
    "description": "A text, tokens, texts and tokens mixed, or several prompts.",
    "anyOf": [{"type": "string"}, _MIXED, {"type": "array", "items": {"anyOf": [_MIXED]}}],
}
_MESSAGES: Schema = {"type": "array", "items": {"type": "object"}}
_SHARED: dict[str, Schema] = {
    "model": _MODEL,
    "json_schema": _OBJECT,
    "sse_ping_interval": _nullable("integer", minimum=-1, maximum=86400),
    "cache_salt": _nullable("string", minLength=1),
    "prompt_cache_key": _TEXT,
    "session_id": _TEXT,
}
_TOOLS: dict[str, Schema] = {
    "tools": _LIST,
    "tool_choice": {"type": ["string", "object", "null"]},
    "parallel_tool_calls": _FLAG,
}

STRUCTURED: Mapping[str, Schema] = {
    "seed": {"type": "integer"},
    "samplers": {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    },
    "stop": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "logit_bias": {
        "anyOf": [
            {"type": "array", "items": {"type": ["array", "object"]}},
            {"type": "object", "additionalProperties": {"type": ["number", "boolean", "null"]}},
        ]
    },
    "penalty_prompt": {"anyOf": [{"type": "string"}, _TOKENS]},
    "dry_sequence_breakers": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    "lora": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["id"],
            "properties": {
                "id": {"type": "integer", "minimum": 0},
                "scale": {"type": "number"},
            },
        },
    },
}
"""Declared fields with a reader of their own, whose type does not tell what they take."""

BODIES: Mapping[str, Body] = {
    "Completion": Body(
        doc="llama-server's completion.",
        has_sampling=True,
        properties=_SHARED
        | {
            "prompt": _PROMPT,
            "image_data": _LIST,
            "system_prompt": {"type": ["object", "string", "null"]},
        },
        required=("prompt",),
    ),
    "Infill": Body(
        doc="A completion between two texts.",
        has_sampling=True,
        properties=_SHARED
        | {
            "input_prefix": _TEXT_OR_MIXED,
            "input_suffix": _TEXT_OR_MIXED,
            "input_extra": _LIST,
            "prompt": _TEXT,
        },
    ),
    "TextCompletion": Body(
        doc="OpenAI's completion, with llama-server's fields.",
        has_sampling=True,
        properties=_SHARED
        | {
            "prompt": _PROMPT,
            "echo": _FLAG,
            "suffix": _TEXT,
            "best_of": _nullable("integer", minimum=1, maximum=128),
            "logprobs": _nullable("integer", minimum=0, maximum=1000),
            "stream_options": _OBJECT,
        },
        required=("prompt",),
    ),
    "ChatCompletion": Body(
        doc="OpenAI's chat completion, with llama-server's fields.",
        has_sampling=True,
        properties=_SHARED
        | _TOOLS
        | {
            "messages": _MESSAGES,
            "functions": _LIST,
            "function_call": {"type": ["string", "object", "null"]},
            "response_format": _OBJECT,
            "logprobs": _FLAG,
            "top_logprobs": _nullable("integer", minimum=0, maximum=1000),
            "stream_options": _OBJECT,
            "chat_template_kwargs": _OBJECT,
            "reasoning_effort": _TEXT,
            "reasoning_format": _TEXT,
            "add_generation_prompt": _FLAG,
            "continue_final_message": {"type": ["boolean", "string", "null"]},
        },
        required=("messages",),
    ),
    "Response": Body(
        doc="OpenAI's response.",
        has_sampling=True,
        properties=_SHARED
        | _TOOLS
        | {
            "input": {"anyOf": [{"type": "string"}, _MESSAGES]},
            "instructions": _TEXT,
            "max_output_tokens": _nullable("integer", minimum=-1),
            "reasoning": _OBJECT,
            "text": _OBJECT,
            "include": _LIST,
            "top_logprobs": _nullable("integer", minimum=0, maximum=1000),
        },
        required=("input",),
    ),
    "Message": Body(
        doc="Anthropic's message.",
        has_sampling=True,
        properties=_SHARED
        | {
            "messages": _MESSAGES,
            "system": {"type": ["string", "array", "null"]},
            "stop_sequences": _LIST,
            "tools": _LIST,
            "tool_choice": _OBJECT,
            "thinking": _OBJECT,
        },
        required=("messages",),
    ),
    "Tokenize": Body(
        doc="Text, or texts and tokens mixed.",
        properties={
            "model": _MODEL,
            "content": {"anyOf": [{"type": ["string", "null"]}, _MIXED]},
            "add_special": _FLAG,
            "parse_special": _FLAG,
            "with_pieces": _FLAG,
        },
    ),
    "Detokenize": Body(doc="Tokens.", properties={"model": _MODEL, "tokens": _TOKENS}),
    "Embedding": Body(
        doc="What is to be embedded: `input` or `content`.",
        properties={
            "model": _MODEL,
            "input": _PROMPT,
            "content": _PROMPT,
            "encoding_format": _TEXT,
            "embd_normalize": _nullable("integer"),
        },
    ),
    "Rerank": Body(
        doc="A query and what is to be ranked by it: `documents` or `texts`.",
        properties={
            "model": _MODEL,
            "query": {"type": "string"},
            "documents": _LIST,
            "texts": _LIST,
            "top_n": _nullable("integer"),
            "return_text": _FLAG,
        },
        required=("query",),
    ),
    "SlotAction": Body(
        doc="The file to save to or to restore from.", properties={"filename": _TEXT}
    ),
    "ChatControl": Body(
        doc="What to do to an answer that is under way.",
        properties={
            "id": {"type": "string"},
            "action": {"type": "string", "enum": ["reasoning_end"]},
        },
        required=("id", "action"),
    ),
    "Props": Body(doc="Properties to change.", properties={"model": _MODEL}),
    "ModelOrder": Body(
        doc="Which model.", properties={"model": {"type": "string"}}, required=("model",)
    ),
}


def _aliases(paths: str, body: str, summary: str, **more: Any) -> dict[tuple[str, str], Endpoint]:
    row = Endpoint(summary=summary, body=body, **more)
    return {("POST", path): row for path in paths.split()}


def _reading(paths: str, summary: str, **more: Any) -> dict[tuple[str, str], Endpoint]:
    return {("GET", path): Endpoint(summary=summary, **more) for path in paths.split()}


_CHAT = "/v1/chat/completions /chat/completions"
_COUNT = "Count the tokens of a request"

ENDPOINTS: Mapping[tuple[str, str], Endpoint] = {
    **_aliases(_CHAT, "ChatCompletion", "Continue a dialog", kinds=_STREAM),
    **_aliases("/v1/completions", "TextCompletion", "Continue a text", kinds=_STREAM),
    **_aliases("/completion /completions", "Completion", "Continue a text", kinds=_STREAM),
    **_aliases("/infill", "Infill", "Write what stands between two texts", kinds=_STREAM),
    **_aliases("/v1/responses /responses", "Response", "Answer", kinds=_STREAM),
    **_aliases("/v1/messages", "Message", "Answer, as Anthropic's API does", kinds=_STREAM),
    **_aliases("/v1/messages/count_tokens", "Message", _COUNT),
    **_aliases("/v1/responses/input_tokens /responses/input_tokens", "Response", _COUNT),
    **_aliases(
        "/v1/chat/completions/input_tokens /chat/completions/input_tokens",
        "ChatCompletion",
        _COUNT,
    ),
    **_aliases("/apply-template", "ChatCompletion", "Write a dialog as the model reads it"),
    **_aliases("/tokenize", "Tokenize", "Turn text into tokens"),
    **_aliases("/detokenize", "Detokenize", "Turn tokens into text"),
    **_aliases("/embedding /embeddings /v1/embeddings", "Embedding", "Embed texts"),
    **_aliases("/rerank /reranking /v1/rerank /v1/reranking", "Rerank", "Rank texts by a query"),
    **_aliases("/v1/chat/completions/control", "ChatControl", "End the thoughts of an answer"),
    **_aliases("/slots/{id_slot}", "SlotAction", "Save, restore or erase a slot"),
    **_aliases("/lora-adapters", "", "Set the scales of LoRA adapters"),
    **_aliases("/props", "Props", "Change global properties"),
    **_reading("/lora-adapters", "List the LoRA adapters"),
    **_reading("/health /v1/health", "Say how the pool is"),
    **_reading("/livez", "Say that the process runs"),
    **_reading("/readyz", "Say whether work would be taken"),
    **_reading("/v1/models /models", "List the models"),
    **_reading("/v1/models/{id}", "Describe a model"),
    **_aliases("/models/load", "ModelOrder", "Load a model"),
    **_aliases("/models/unload", "ModelOrder", "Unload a model"),
    **_reading("/models/sse", "Tell of every change of a model", kinds=("text/event-stream",)),
    **_reading("/props", "Describe a model"),
    **_reading("/slots", "List the slots"),
    **_reading("/metrics", "Figures for Prometheus", kinds=("text/plain",)),
    **_reading("/openapi.json", "This document"),
    ("DELETE", "/models"): Endpoint(summary="Refused: there are no downloads to delete"),
}

_BY_MODEL: Mapping[str, Schema] = {"model": {"type": "string"}}
_FULL: Mapping[str, Schema] = {"fail_on_no_slot": {"type": "string"}}
_INCLUDE: Mapping[str, Schema] = {"include_slots": {"type": "string"}}

QUERIES: Mapping[tuple[str, str], Mapping[str, Schema]] = {
    ("GET", "/health"): {**_FULL, **_INCLUDE},
    ("GET", "/v1/health"): {**_FULL, **_INCLUDE},
    ("GET", "/v1/models"): {
        "limit": {"type": "integer", "description": "With the header `anthropic-version`."},
        "after_id": {"type": "string"},
        "before_id": {"type": "string"},
    },
    ("GET", "/models"): {"reload": {"type": "string"}},
    ("DELETE", "/models"): _BY_MODEL,
    ("GET", "/props"): _BY_MODEL,
    ("GET", "/slots"): {**_BY_MODEL, **_FULL, "legacy": {"type": "string"}},
    ("GET", "/lora-adapters"): _BY_MODEL,
    ("POST", "/slots/{id_slot}"): {
        "action": {"type": "string", "enum": ["save", "restore", "erase"]}
    },
}
