"""A valid request of every endpoint."""

import base64
from dataclasses import dataclass, field
from typing import Any

_PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
        "0000000c49444154789c63f8cfc000000301010018dd8db00000000049454e44ae426082"
    )
).decode()
_URL = f"data:image/png;base64,{_PIXEL}"
_PLACE = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "days": {"$ref": "#/$defs/days"}},
    "required": ["place"],
    "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
}
_TOOL = {"type": "function", "function": {"name": "weather", "parameters": _PLACE}}
_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"place": "Oslo"}'},
}
_CHAT = {
    "model": "any",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "max_tokens": 2,
}
_ROLLOUT = {"options": {"n_ctx": "64"}}
_NATIVE = {"prompt": "Hi", "n_predict": 2}


@dataclass(frozen=True, slots=True)
class Seed:
    """A request that is answered well, on a pool that can do what it asks for."""

    path: str
    body: Any = None
    method: str = "POST"
    pinned: dict[str, Any] = field(default_factory=dict)
    """Fields that no mutation may change, because the pool would do what they then say."""
    hangs_up_s: float = 0.0
    """For streams that do not end."""


def _get(path: str, hangs_up_s: float = 0.0) -> Seed:
    return Seed(path, method="GET", hangs_up_s=hangs_up_s)


SEEDS = (
    Seed("/v1/chat/completions", _CHAT),
    Seed("/v1/chat/completions", {**_CHAT, "stream": True, "n": 2, "logprobs": True}),
    Seed(
        "/v1/chat/completions",
        {
            **_CHAT,
            "tools": [_TOOL],
            "tool_choice": "auto",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
                {"role": "assistant", "content": None, "tool_calls": [_CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": "warm"},
            ],
            "chat_template_kwargs": {"enable_thinking": False},
        },
    ),
    Seed(
        "/chat/completions",
        {
            **_CHAT,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "place", "strict": True, "schema": _PLACE},
            },
            "stop": ["end"],
            "logit_bias": {"5": -1},
        },
    ),
    Seed(
        "/v1/chat/completions",
        {
            **_CHAT,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is it?"},
                        {"type": "image_url", "image_url": {"url": _URL}},
                    ],
                }
            ],
        },
    ),
    Seed("/v1/chat/completions/input_tokens", _CHAT),
    Seed("/v1/chat/completions/control", {"id": "chatcmpl-1", "action": "reasoning_end"}),
    Seed("/apply-template", {"messages": _CHAT["messages"]}),
    Seed("/v1/completions", {"model": "any", "prompt": ["Hi", "Ho"], "max_tokens": 2}),
    Seed("/completion", {**_NATIVE, "n_probs": 2, "samplers": ["top_k", "temperature"]}),
    Seed("/completion", {**_NATIVE, "stream": True, "grammar": 'root ::= "a" [b-d]+'}),
    Seed("/completion", {**_NATIVE, "json_schema": _PLACE, "stop": ["\n"], "id_slot": 0}),
    Seed("/completion", {"prompt": [1, 2], "n_predict": 2, "logit_bias": [[5, -1], ["a", 1]]}),
    Seed(
        "/completion",
        {"prompt": {"prompt_string": "<__media__>", "multimodal_data": [_PIXEL]}, "n_predict": 2},
    ),
    Seed("/completions", {**_NATIVE, "dry_sequence_breakers": ["\n"], "penalty_prompt": "a"}),
    Seed(
        "/infill",
        {
            "input_prefix": "def f",
            "input_suffix": "return",
            "input_extra": [{"filename": "a.py", "text": "x = 1"}],
            "n_predict": 2,
        },
    ),
    Seed(
        "/v1/responses",
        {
            "model": "any",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
            "instructions": "Be brief.",
            "max_output_tokens": 2,
            "tools": [{"type": "function", "name": "weather", "parameters": _PLACE}],
            "text": {"format": {"type": "text"}},
            "reasoning": {"effort": "low"},
        },
    ),
    Seed("/v1/responses", {"input": "Hi", "max_output_tokens": 2, "stream": True}),
    Seed("/v1/responses/input_tokens", {"input": "Hi"}),
    Seed(
        "/v1/messages",
        {
            "model": "any",
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": "Weather?"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "tool_use", "id": "t", "name": "weather", "input": {"place": "x"}}
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t", "content": "warm"}],
                },
            ],
            "tools": [{"name": "weather", "input_schema": _PLACE}],
            "max_tokens": 2,
            "stop_sequences": ["end"],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        },
    ),
    Seed(
        "/v1/messages",
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "stream": True},
    ),
    Seed("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hi"}]}),
    Seed("/v1/embeddings", {"input": ["Hi", [1, 2]], "encoding_format": "base64"}),
    Seed("/embeddings", {"content": "Hi", "embd_normalize": 2}),
    Seed("/embedding", {"content": ["Hi", "Ho"]}),
    Seed("/v1/rerank", {"query": "Hi", "documents": ["a", "b"], "top_n": 1}),
    Seed("/tokenize", {"content": "Hi", "with_pieces": True, "add_special": True}),
    Seed("/detokenize", {"tokens": [1, 2, 3]}),
    Seed("/slots/0?action=save", {"filename": "a"}),
    Seed("/slots/0?action=restore", {"filename": "a"}),
    Seed("/slots/0?action=erase", {}),
    Seed("/lora-adapters", [{"id": 0, "scale": 0.5}]),
    Seed("/props", {"system_prompt": {"prompt": "Be brief.", "anti_prompt": "User:"}}),
    Seed("/models/load", {"model": "other"}),
    Seed("/models/unload", {"model": "other"}),
    Seed("/models?model=other", method="DELETE"),
    Seed(
        "/predict",
        {
            "instances": [
                {"@requestFormat": "chatCompletions", **_CHAT},
                {"@requestFormat": "/completion", **_NATIVE},
            ]
        },
    ),
    Seed("/admin/drain", {"worker": "nobody", "force": False}, pinned={"worker": "nobody"}),
    Seed("/admin/undrain", {"worker": "nobody"}),
    Seed("/admin/rollout", _ROLLOUT, pinned=_ROLLOUT),
    Seed("/admin/rollout/abort", {}),
    *(_get(f"/admin/{name}") for name in ("status", "workers", "quarantine", "rollout")),
    _get("/admin/requests?state=running&limit=5"),
    _get("/admin/requests/1"),
    _get("/admin/usage?by=key&from=2026-01-01&to=2026-02-01"),
    _get("/v1/usage?by=model"),
    *(_get(path) for path in ("/health?include_slots=1", "/livez", "/readyz", "/metrics")),
    *(_get(path) for path in ("/v1/models", "/v1/models/any", "/slots?model=any", "/props")),
    *(_get(path) for path in ("/lora-adapters", "/openapi.json", "/", "/nothing")),
    _get("/pool/events", hangs_up_s=0.1),
    _get("/models/sse", hangs_up_s=0.1),
)
