"""Every endpoint: what it does, and the fields of its body.

The checks of bodies and the OpenAPI document are made from it. Several endpoints may have the same
body; fields that several bodies have are in `gateway.api.fields.tables`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.api.fields.structures import (
    CONTENT_PARTS,
    DATA,
    MESSAGES,
    MIXED,
    NAME,
    OUTPUT_CONFIG,
    PROMPTS,
    RESPONSE_FORMAT,
    SYSTEM_PROMPT,
    TEMPLATE_VARIABLES,
    TEXT,
    WORD,
    Upload,
)
from gateway.api.fields.tables import (
    CHAT,
    CONSTRAINTS,
    COUNT,
    FLAG,
    LOG_PROBS,
    MEDIA_DATA,
    MODEL,
    ORIGIN,
    PRIORITY,
    PROMPT_TEXT,
    SESSION,
    SHARED,
    USAGE,
    Body,
)
from protocol.wire.shapes import (
    CONTEXT_BYTES,
    FLOAT32_MAX,
    INT32_MAX,
    Clamp,
    Either,
    Entries,
    Fields,
    Free,
    Items,
    Number,
    Several,
    TextShape,
    Token,
)

BODIES: Mapping[str, Body] = {
    "Completion": Body(
        doc="llama-server's completion.",
        has_sampling=True,
        fields={
            **SHARED,
            **MEDIA_DATA,
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
            **MEDIA_DATA,
            "input_prefix": Either((PROMPT_TEXT, MIXED)),
            "input_suffix": Either((PROMPT_TEXT, MIXED)),
            "input_extra": Items(
                Fields({"filename": TextShape(max_length=4096), "text": TEXT}), "messages"
            ),
            "prompt": PROMPT_TEXT,
        },
    ),
    "TextCompletion": Body(
        doc="OpenAI's completion, with llama-server's fields.",
        has_sampling=True,
        fields={
            **SHARED,
            **USAGE,
            **MEDIA_DATA,
            **CONSTRAINTS,
            "prompt": PROMPTS,
            "echo": FLAG,
            "suffix": PROMPT_TEXT,
            "best_of": Number(low=1, high=128),
            "logprobs": LOG_PROBS,
        },
        required=("prompt",),
    ),
    "ChatCompletion": Body(
        doc="OpenAI's chat completion, with llama-server's fields.",
        has_sampling=True,
        fields={
            **CHAT,
            **USAGE,
            **CONSTRAINTS,
            "messages": MESSAGES,
            "logprobs": LOG_PROBS,
        },
        required=("messages",),
    ),
    "Response": Body(
        doc="OpenAI's response.",
        has_sampling=True,
        fields={
            **CHAT,
            **USAGE,
            "input": Either((TEXT, MESSAGES)),
            "instructions": TEXT,
            "max_output_tokens": Number(low=-1, high=INT32_MAX),
            "reasoning": Fields({"effort": WORD, "summary": WORD}),
            "text": Fields({"format": RESPONSE_FORMAT, "verbosity": WORD}),
            "include": Items(NAME, 64),
            "logprobs": LOG_PROBS,
        },
        required=("input",),
    ),
    "Message": Body(
        doc="Anthropic's message.",
        has_sampling=True,
        fields={
            **CHAT,
            **USAGE,
            "messages": MESSAGES,
            "system": Either((TEXT, CONTENT_PARTS)),
            "stop_sequences": Items(TextShape(max_length="stop_chars"), "stops"),
            "thinking": Fields({"type": WORD, "budget_tokens": COUNT}),
            "thread": Fields({"type": WORD, "previous_message_id": NAME}),
            "output_config": OUTPUT_CONFIG,
            "logprobs": LOG_PROBS,
        },
        required=("messages",),
    ),
    "Transcription": Body(
        doc="A sound to write down, and llama-server's fields, as a form.",
        has_sampling=True,
        fields={
            **SHARED,
            "file": Upload(),
            "prompt": TEXT,
            "language": WORD,
            "response_format": WORD,
            "include": Items(NAME, 64),
            "timestamp_granularities": Items(NAME, 64),
            "chat_template_kwargs": TEMPLATE_VARIABLES,
            "reasoning_effort": WORD,
        },
        required=("file",),
        is_form=True,
    ),
    "Tokenize": Body(
        doc="Text, or texts and tokens mixed.",
        fields={
            "model": MODEL,
            "content": Either((PROMPT_TEXT, MIXED)),
            "add_special": FLAG,
            "parse_special": FLAG,
            "with_pieces": FLAG,
        },
    ),
    "Detokenize": Body(
        # Of the longest text that /tokenize takes, each character may have been a token.
        doc="Tokens.",
        fields={"model": MODEL, "tokens": Items(Token(), CONTEXT_BYTES)},
    ),
    "Embedding": Body(
        doc="What to embed: `input` or `content`.",
        fields={
            "model": MODEL,
            "input": PROMPTS,
            "content": PROMPTS,
            "encoding_format": WORD,
            "embd_normalize": Number(low=-1, high=INT32_MAX),
            "dimensions": Number(low=1, high=INT32_MAX),
            "multimodal_data": DATA,
            "priority": PRIORITY,
            **MEDIA_DATA,
        },
    ),
    "Rerank": Body(
        doc="A query and what to rank by it: `documents` or `texts`.",
        fields={
            "model": MODEL,
            "query": PROMPT_TEXT,
            "documents": Several(Either((PROMPT_TEXT, Fields({"text": PROMPT_TEXT})))),
            "texts": Several(Either((PROMPT_TEXT, Fields({"text": PROMPT_TEXT})))),
            "top_n": COUNT,
            "return_text": FLAG,
            "return_documents": FLAG,
            "priority": PRIORITY,
        },
        required=("query",),
    ),
    "SlotAction": Body(
        doc="The file to save to or restore from, and the model of the slot.",
        fields={**ORIGIN, "model": MODEL, "filename": TextShape(max_length=4096)},
    ),
    "ChatControl": Body(
        doc="What to do to an answer that is running.",
        fields={"id": NAME, "action": WORD},
        required=("id", "action"),
    ),
    "StreamLookup": Body(
        doc="The conversations whose streams are asked for.",
        fields={"conversation_ids": Items(SESSION, "inputs")},
    ),
    "Adapters": Body(
        doc="The scales of adapters; an adapter that is not named gets 0.",
        fields={
            "": Items(
                Fields(
                    {
                        "id": COUNT,
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
        fields={"worker": NAME, "force": FLAG},
        required=("worker",),
    ),
    "Rollout": Body(
        doc="How the workers change; nothing: they are started anew as they are configured.",
        fields={
            "config": MODEL,
            "options": Entries(Free(8, 65536), 256),
            "golden": Items(
                Fields(
                    {"prompt": TextShape(max_length=65536), "answer": TextShape(max_length=65536)}
                ),
                16,
            ),
            "only_changed": FLAG,
            "surge": WORD,
        },
    ),
    "RolloutEnd": Body(doc="Nothing: there is one rolling change at most."),
    "ModelOrder": Body(doc="Which model.", fields={"model": MODEL}, required=("model",)),
}

_STREAM = ("application/json", "text/event-stream")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """One method of one path."""

    summary: str
    body: str = ""
    """A key of `BODIES`; empty is none."""
    kinds: tuple[str, ...] = ("application/json",)
    """Media types of the answer."""
    status: int = 200
    query: tuple[str, ...] = ()
    """Its query parameters, keys of `gateway.api.fields.tables.QUERIES`."""


def _aliases(
    paths: str, body: str, summary: str, **more: Any
) -> dict[tuple[str, str], EndpointSpec]:
    row = EndpointSpec(summary=summary, body=body, **more)
    return {("POST", path): row for path in paths.split()}


def _reading(paths: str, summary: str, **more: Any) -> dict[tuple[str, str], EndpointSpec]:
    return {("GET", path): EndpointSpec(summary=summary, **more) for path in paths.split()}


_CHATS = "/v1/chat/completions /chat/completions"
_COUNT_TOKENS = "Count the tokens of a request"
_HEALTH = ("fail_on_no_slot", "include_slots")
_LIST = ("limit", "after_id", "before_id", "reload")
_ONE_MODEL = ("model", "autoload")
_SLOTS = ("model", "autoload", "fail_on_no_slot", "legacy")
_REQUESTS = ("limit", "state", "key", "model")

ENDPOINTS: Mapping[tuple[str, str], EndpointSpec] = {
    **_aliases(_CHATS, "ChatCompletion", "Answer a chat", kinds=_STREAM),
    **_aliases("/v1/completions", "TextCompletion", "Continue a text", kinds=_STREAM),
    **_aliases("/completion /completions", "Completion", "Continue a text", kinds=_STREAM),
    **_aliases("/infill", "Infill", "Write the text between two texts", kinds=_STREAM),
    **_aliases("/v1/responses /responses", "Response", "Answer", kinds=_STREAM),
    **_aliases(
        "/v1/audio/transcriptions /audio/transcriptions",
        "Transcription",
        "Write down what a sound says",
        kinds=_STREAM,
    ),
    **_aliases("/v1/messages", "Message", "Answer, as Anthropic's API does", kinds=_STREAM),
    **_aliases("/v1/messages/count_tokens", "Message", _COUNT_TOKENS),
    **_aliases("/v1/responses/input_tokens /responses/input_tokens", "Response", _COUNT_TOKENS),
    **_aliases(
        "/v1/chat/completions/input_tokens /chat/completions/input_tokens",
        "ChatCompletion",
        _COUNT_TOKENS,
    ),
    **_aliases("/apply-template", "ChatCompletion", "Render a chat as the model reads it"),
    **_aliases("/tokenize", "Tokenize", "Turn text into tokens"),
    **_aliases("/detokenize", "Detokenize", "Turn tokens into text"),
    **_aliases("/embedding /embeddings /v1/embeddings", "Embedding", "Embed texts"),
    **_aliases("/rerank /reranking /v1/rerank /v1/reranking", "Rerank", "Rank texts by a query"),
    **_aliases("/v1/chat/completions/control", "ChatControl", "End the reasoning of an answer"),
    **_aliases("/v1/streams/lookup", "StreamLookup", "Tell of the kept streams of conversations"),
    **_reading(
        "/v1/stream",
        "Read a kept stream again",
        kinds=("text/event-stream",),
        query=("conv_id", "from"),
    ),
    ("DELETE", "/v1/stream"): EndpointSpec(
        summary="End a kept stream", kinds=(), status=204, query=("conv_id",)
    ),
    **_aliases(
        "/slots/{id_slot}",
        "SlotAction",
        "Save, restore or erase a slot",
        query=("action", *_ONE_MODEL),
    ),
    **_aliases("/lora-adapters", "Adapters", "Set the scales of LoRA adapters", query=_ONE_MODEL),
    **_aliases("/props", "Props", "Change global properties"),
    **_reading("/lora-adapters", "List the LoRA adapters", query=_ONE_MODEL),
    **_reading("/health /v1/health", "Return the health of the pool", query=_HEALTH),
    **_reading("/livez", "Return that the process runs"),
    **_reading("/readyz", "Return whether new work is accepted"),
    **_reading("/v1/models /models", "List the models", query=_LIST),
    **_reading("/v1/models/{id}", "Describe a model"),
    **_aliases("/models", "ModelOrder", "Download a model into the Hugging Face cache"),
    **_aliases("/models/load", "ModelOrder", "Load a model"),
    **_aliases("/models/unload", "ModelOrder", "Unload a model"),
    **_reading("/models/sse", "Stream every change of a model", kinds=("text/event-stream",)),
    **_reading("/props", "Describe a model", query=_ONE_MODEL),
    **_reading("/slots", "List the slots", query=_SLOTS),
    **_reading("/metrics", "Figures for Prometheus", kinds=("text/plain",)),
    **_reading("/openapi.json", "This document"),
    **_reading("/pool/events", "Stream the state of the pool", kinds=("text/event-stream",)),
    **_reading("/admin/status", "Return the state of the pool, for `llamapool status`"),
    **_reading("/admin/workers", "List the workers"),
    **_reading("/admin/requests", "List the requests that run and wait", query=_REQUESTS),
    **_reading("/admin/requests/{id}", "Tell where the requests of an id went, and why"),
    **_reading(
        "/admin/usage",
        "Return what was used, by key, model and day",
        query=("by", "from", "to", "key", "model"),
    ),
    **_reading(
        "/v1/usage", "Return what the own key has used", query=("by", "from", "to", "model")
    ),
    **_reading("/admin/quarantine", "List the prompts under which workers died"),
    **_reading("/admin/rollout", "Return the rolling change that runs, or the last one"),
    **_aliases("/admin/drain", "WorkerOrder", "Take a worker out of service"),
    **_aliases(
        "/admin/undrain", "WorkerOrder", "Start a worker that was drained, or that died and waits"
    ),
    **_aliases("/admin/rollout", "Rollout", "Replace the workers, one at a time", status=202),
    **_aliases(
        "/admin/rollout/abort",
        "RolloutEnd",
        "Stop the rolling change and roll it back",
        status=202,
    ),
    ("DELETE", "/admin/quarantine"): EndpointSpec(
        summary="Let refused prompts in again", query=("fingerprint",)
    ),
    ("DELETE", "/models"): EndpointSpec(
        summary="Delete a model of the Hugging Face cache", query=("model",)
    ),
}
