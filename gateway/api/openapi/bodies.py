"""The texts of the OpenAPI document: one row for each endpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_STREAM = ("application/json", "text/event-stream")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointText:
    """One method of one path."""

    summary: str
    body: str = ""
    """A name in `gateway.api.fields.tables.BODIES`; empty is none."""
    kinds: tuple[str, ...] = ("application/json",)
    """Media types of the answer."""


def _aliases(
    paths: str, body: str, summary: str, **more: Any
) -> dict[tuple[str, str], EndpointText]:
    row = EndpointText(summary=summary, body=body, **more)
    return {("POST", path): row for path in paths.split()}


def _reading(paths: str, summary: str, **more: Any) -> dict[tuple[str, str], EndpointText]:
    return {("GET", path): EndpointText(summary=summary, **more) for path in paths.split()}


_CHAT = "/v1/chat/completions /chat/completions"
_COUNT = "Count the tokens of a request"

ENDPOINTS: Mapping[tuple[str, str], EndpointText] = {
    **_aliases(_CHAT, "ChatCompletion", "Answer a chat", kinds=_STREAM),
    **_aliases("/v1/completions", "TextCompletion", "Continue a text", kinds=_STREAM),
    **_aliases("/completion /completions", "Completion", "Continue a text", kinds=_STREAM),
    **_aliases("/infill", "Infill", "Write the text between two texts", kinds=_STREAM),
    **_aliases("/v1/responses /responses", "Response", "Answer", kinds=_STREAM),
    **_aliases("/v1/messages", "Message", "Answer, as Anthropic's API does", kinds=_STREAM),
    **_aliases("/v1/messages/count_tokens", "Message", _COUNT),
    **_aliases("/v1/responses/input_tokens /responses/input_tokens", "Response", _COUNT),
    **_aliases(
        "/v1/chat/completions/input_tokens /chat/completions/input_tokens",
        "ChatCompletion",
        _COUNT,
    ),
    **_aliases("/apply-template", "ChatCompletion", "Render a chat as the model reads it"),
    **_aliases("/tokenize", "Tokenize", "Turn text into tokens"),
    **_aliases("/detokenize", "Detokenize", "Turn tokens into text"),
    **_aliases("/embedding /embeddings /v1/embeddings", "Embedding", "Embed texts"),
    **_aliases("/rerank /reranking /v1/rerank /v1/reranking", "Rerank", "Rank texts by a query"),
    **_aliases("/v1/chat/completions/control", "ChatControl", "End the reasoning of an answer"),
    **_aliases("/v1/streams/lookup", "StreamLookup", "Tell of the kept streams of conversations"),
    **_reading("/v1/stream", "Read a kept stream again", kinds=("text/event-stream",)),
    ("DELETE", "/v1/stream"): EndpointText(summary="End a kept stream", kinds=()),
    **_aliases("/slots/{id_slot}", "SlotAction", "Save, restore or erase a slot"),
    **_aliases("/lora-adapters", "Adapters", "Set the scales of LoRA adapters"),
    **_aliases("/props", "Props", "Change global properties"),
    **_reading("/lora-adapters", "List the LoRA adapters"),
    **_reading("/health /v1/health", "Return the health of the pool"),
    **_reading("/livez", "Return that the process runs"),
    **_reading("/readyz", "Return whether new work is accepted"),
    **_reading("/v1/models /models", "List the models"),
    **_reading("/v1/models/{id}", "Describe a model"),
    **_aliases("/models", "ModelOrder", "Download a model into the Hugging Face cache"),
    **_aliases("/models/load", "ModelOrder", "Load a model"),
    **_aliases("/models/unload", "ModelOrder", "Unload a model"),
    **_reading("/models/sse", "Stream every change of a model", kinds=("text/event-stream",)),
    **_reading("/props", "Describe a model"),
    **_reading("/slots", "List the slots"),
    **_reading("/metrics", "Figures for Prometheus", kinds=("text/plain",)),
    **_reading("/openapi.json", "This document"),
    **_reading("/pool/events", "Stream the state of the pool", kinds=("text/event-stream",)),
    **_reading("/admin/status", "Return the state of the pool, for `llamapool status`"),
    **_reading("/admin/workers", "List the workers"),
    **_reading("/admin/requests", "List the requests that run and wait"),
    **_reading("/admin/requests/{id}", "Tell where the requests of an id went, and why"),
    **_reading("/admin/usage", "Return what was used, by key, model and day"),
    **_reading("/v1/usage", "Return what the own key has used"),
    **_reading("/admin/quarantine", "List the prompts under which workers died"),
    **_reading("/admin/rollout", "Return the rolling change that runs, or the last one"),
    **_aliases("/admin/drain", "WorkerOrder", "Take a worker out of service"),
    **_aliases("/admin/undrain", "WorkerOrder", "Start a drained worker again"),
    **_aliases("/admin/rollout", "Rollout", "Replace the workers, one at a time"),
    **_aliases("/admin/rollout/abort", "RolloutEnd", "End the rolling change and go back"),
    ("DELETE", "/admin/quarantine"): EndpointText(summary="Let refused prompts in again"),
    ("DELETE", "/models"): EndpointText(summary="Delete a model of the Hugging Face cache"),
}

_FULL = ("fail_on_no_slot", "include_slots")

QUERIES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("GET", "/health"): _FULL,
    ("GET", "/v1/health"): _FULL,
    ("GET", "/v1/models"): ("limit", "after_id", "before_id", "reload"),
    ("GET", "/models"): ("limit", "after_id", "before_id", "reload"),
    ("DELETE", "/models"): ("model",),
    ("GET", "/v1/stream"): ("conv_id", "from"),
    ("DELETE", "/v1/stream"): ("conv_id",),
    ("GET", "/props"): ("model", "autoload"),
    ("GET", "/slots"): ("model", "autoload", "fail_on_no_slot", "legacy"),
    ("GET", "/lora-adapters"): ("model", "autoload"),
    ("POST", "/lora-adapters"): ("model", "autoload"),
    ("POST", "/slots/{id_slot}"): ("action",),
    ("GET", "/admin/requests"): ("limit", "state", "key", "model"),
    ("GET", "/admin/usage"): ("by", "from", "to", "key", "model"),
    ("GET", "/v1/usage"): ("by", "from", "to", "model"),
}
"""The query parameters of an endpoint; `gateway/api/fields/tables.py` says what they may be."""
