"""What this server does not do yet: one table of request fields, one of endpoints.

A field is honoured or refused. Three kinds of field never reach the sampler:

- `REFUSED`: llama-server or OpenAI would act on it, we cannot yet. A value that asks for something
  gives a 400 that names the field; null, or the value that asks for nothing, passes.
- `HARMLESS`: it changes no answer (an account label, a storage flag, a hint for speed). It passes,
  and stands here so that nobody has to wonder.
- Everything else that no reader knows is ignored, as llama-server ignores it: clients such as Open
  WebUI send fields of their own to every server and must go on working.
"""

from collections.abc import Callable, Mapping
from typing import Any

from protocol.errors import ErrorCode, InvalidRequest, TaskError

_Test = Callable[[Any], bool]


def _other_than(*harmless: Any) -> _Test:
    return lambda value: value not in harmless


def _not_empty(value: Any) -> bool:
    return bool(value)


REFUSED: Mapping[str, tuple[str, _Test]] = {
    "tools": ("tool calls are", _not_empty),
    "tool_choice": ("tool calls are", _other_than("none", "auto")),
    "functions": ("function calls are", _not_empty),
    "function_call": ("function calls are", _other_than("none", "auto")),
    "response_format": ("structured output is", _other_than({"type": "text"}, {})),
    "json_schema": ("structured output is", _other_than()),
    "grammar_lazy": ("lazy grammars are", _not_empty),
    "grammar_triggers": ("lazy grammars are", _not_empty),
    "preserved_tokens": ("lazy grammars are", _not_empty),
    "image_data": ("images are", _not_empty),
    "multimodal_data": ("images are", _not_empty),
    "audio": ("audio is", _not_empty),
    "modalities": ("anything but text is", _other_than(["text"], [])),
    "system_prompt": ("a shared system prompt is", _not_empty),
    "lora": ("LoRA adapters are", _not_empty),
    "suffix": ("insertion is", _not_empty),
    "tokenize": ("the token echo of api_like_OAI is", _not_empty),
    "prediction": ("predicted output is", _not_empty),
    "web_search_options": ("web search is", _other_than()),
    "reasoning_format": ("reasoning extraction is", _other_than("none", "auto")),
    "reasoning_control": ("reasoning control is", _not_empty),
    "reasoning_budget_tokens": ("a reasoning budget is", _other_than(-1)),
    "thinking_budget_tokens": ("a reasoning budget is", _other_than(-1)),
    "continue_final_message": ("continuing a message is", _not_empty),
    "add_generation_prompt": ("leaving the generation prompt out is", _other_than(True)),
    "chat_template": ("a template in the request is", _not_empty),
    "chat_format": ("choosing the chat parser is", _other_than("", "Content-only", 0)),
    "chat_parser": ("choosing the chat parser is", _not_empty),
    "parse_tool_calls": ("tool calls are", _not_empty),
    "generation_prompt": ("a generation prompt is", _not_empty),
}
"""Name -> (what is not supported, whether a value that is not null asks for it)."""

HARMLESS: Mapping[str, str] = {
    "user": "a label of the account holder's user",
    "metadata": "labels for a dashboard",
    "store": "asks OpenAI to keep the answer for its dashboard",
    "service_tier": "a price class",
    "safety_identifier": "a label of the account holder's user",
    "prompt_cache_key": "a hint for cache affinity",
    "prompt_cache_retention": "a hint for the cache",
    "prompt_cache_options": "a hint for the cache",
    "parallel_tool_calls": "means nothing without tools, which are refused",
    "verbosity": "a wish to the model that no template here reads",
    "backend_sampling": "where to sample; the text is the same",
    "n_cache_reuse": "a hint for the cache",
    "speculative.n_max": "speculation never changes the text",
    "speculative.n_min": "speculation never changes the text",
    "speculative.p_min": "speculation never changes the text",
}


def _bad_tool_choice(value: Any) -> str | None:
    is_known = not isinstance(value, str) or value in ("none", "auto", "required")
    return None if is_known else f"Invalid tool_choice: {value}"


def _bad_response_format(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in ("text", "json_object", "json_schema"):
        return f'response_format type must be one of "text" or "json_object", but got: {kind}'
    return None


_MESSAGES: Mapping[str, Callable[[Any], str | None]] = {
    "tool_choice": _bad_tool_choice,
    "response_format": _bad_response_format,
}
"""Values that llama-server itself refuses, in its words."""


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` for the first field that asks for what is not there yet."""
    for key, value in body.items():
        row = REFUSED.get(key)
        if row is None or value is None or not row[1](value):
            continue
        own = _MESSAGES.get(key, lambda _: None)(value)
        raise InvalidRequest(own or f"Field '{key}': {row[0]} not supported yet", param=key)


_POOLING = "embeddings"
_RANKING = "reranking"

ENDPOINTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "/embedding": (("POST",), _POOLING),
    "/embeddings": (("POST",), _POOLING),
    "/v1/embeddings": (("POST",), _POOLING),
    "/rerank": (("POST",), _RANKING),
    "/reranking": (("POST",), _RANKING),
    "/v1/rerank": (("POST",), _RANKING),
    "/v1/reranking": (("POST",), _RANKING),
    "/infill": (("POST",), "infill"),
    "/apply-template": (("POST",), "template rendering"),
    "/props": (("POST",), "changing global properties"),
    "/slots/{id_slot}": (("POST",), "slot actions"),
    "/lora-adapters": (("GET", "POST"), "LoRA adapters"),
    "/responses": (("POST",), "responses"),
    "/v1/responses": (("POST",), "responses"),
    "/responses/input_tokens": (("POST",), "token counting"),
    "/v1/responses/input_tokens": (("POST",), "token counting"),
    "/chat/completions/input_tokens": (("POST",), "token counting"),
    "/v1/chat/completions/input_tokens": (("POST",), "token counting"),
    "/v1/chat/completions/control": (("POST",), "reasoning control"),
    "/v1/messages": (("POST",), "messages"),
    "/v1/messages/count_tokens": (("POST",), "token counting"),
    "/audio/transcriptions": (("POST",), "transcription"),
    "/v1/audio/transcriptions": (("POST",), "transcription"),
    "/v1/stream": (("GET", "DELETE"), "stream resumption"),
    "/v1/streams/lookup": (("POST",), "stream resumption"),
    "/v1/systemone": (("POST",), "decision models"),
    "/models": (("POST", "DELETE"), "loading models"),
    "/models/load": (("POST",), "loading models"),
    "/models/unload": (("POST",), "loading models"),
    "/models/sse": (("GET",), "loading models"),
}
"""Path -> (methods, what it would do): the endpoints of llama-server that are not here yet."""


def refuse_endpoint(path: str, what: str) -> TaskError:
    """Return the 501 for an endpoint that is not here yet."""
    message = f"{what[0].upper()}{what[1:]} ({path}) not supported yet by this server"
    return TaskError(ErrorCode.NOT_SUPPORTED, message)
