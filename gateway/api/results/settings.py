"""`generation_settings`, and the `params` of /props and /slots: llama-server's keys in its order.

Numbers of llama.cpp are float32 and are printed as doubles (0.8 is 0.800000011920929). The keys
of 2023 and 2024 that llama-server has dropped follow.
"""

import math
import struct
from collections.abc import Callable
from typing import Any

from protocol.wire.sampling import SamplingParams
from protocol.wire.shapes import FLOAT32_MAX

_Row = tuple[str, Callable[[SamplingParams], Any]]
_FLOAT32 = struct.Struct("<f")  # native "f" gives inf for a number that is too large


def float32(value: float) -> float:
    """Round to float32, as llama.cpp holds the number."""
    try:
        return float(_FLOAT32.unpack(_FLOAT32.pack(value))[0])
    except OverflowError:
        return math.copysign(FLOAT32_MAX, value)


def settings(params: SamplingParams) -> dict[str, Any]:
    """Return the 49 keys of `generation_settings`."""
    return {key: value(params) for key, value in _ROWS}


def metric_settings(params: SamplingParams) -> dict[str, Any]:
    """Return the 42 keys of /props and /slots: without texts of clients."""
    return {key: value(params) for key, value in _ROWS if key not in _PRIVATE}


def legacy_settings(params: SamplingParams, *, n_ctx: int, model: str) -> dict[str, Any]:
    """Return the keys of 2023 to 2025 that today's object lacks."""
    prompt = params.penalty_prompt
    return {
        "n_ctx": n_ctx,
        "model": model,
        "temp": float32(params.temperature),
        "tfs_z": float32(params.tfs_z),
        "penalize_nl": bool(params.penalize_nl),
        "penalty_prompt_tokens": list(prompt) if isinstance(prompt, tuple) else [],
        "use_penalty_prompt_tokens": prompt is not None,
        "speculative.n_max": params.speculative_n_max or 0,
        "speculative.n_min": params.speculative_n_min or 0,
        "speculative.p_min": float32(params.speculative_p_min or 0.0),
    }


def _plain(name: str) -> _Row:
    return name, lambda params: getattr(params, name)


def _real(name: str) -> _Row:
    return name, lambda params: float32(getattr(params, name))


def _fixed(name: str, value: Any) -> _Row:
    return name, lambda params: value


def _biases(params: SamplingParams) -> list[dict[str, Any]]:
    return [
        {"bias": float32(bias) if math.isfinite(bias) else None, "token": token}
        for token, bias in params.logit_bias
    ]


def _adapter(number: int, scale: float) -> dict[str, Any]:
    return {"id": number, "scale": float32(scale)}


_ROWS: tuple[_Row, ...] = (
    _plain("seed"),
    ("temperature", lambda p: float32(max(0.0, p.temperature))),
    _real("dynatemp_range"),
    _real("dynatemp_exponent"),
    _plain("top_k"),
    _real("top_p"),
    _real("min_p"),
    _real("top_n_sigma"),
    _real("xtc_probability"),
    _real("xtc_threshold"),
    _real("typical_p"),
    _plain("repeat_last_n"),
    _real("repeat_penalty"),
    _real("presence_penalty"),
    _real("frequency_penalty"),
    _real("dry_multiplier"),
    _real("dry_base"),
    _plain("dry_allowed_length"),
    _plain("dry_penalty_last_n"),
    # An empty text matches nothing: it stands for `--dry-sequence-breaker none`.
    ("dry_sequence_breakers", lambda p: tuple(filter(None, p.dry_sequence_breakers))),
    _plain("mirostat"),
    _real("mirostat_tau"),
    _real("mirostat_eta"),
    _real("adaptive_target"),
    _real("adaptive_decay"),
    _plain("stop"),
    ("max_tokens", lambda params: params.n_predict),
    _plain("n_predict"),
    _plain("n_keep"),
    _plain("n_discard"),
    _plain("ignore_eos"),
    _plain("stream"),
    ("logit_bias", _biases),
    _plain("n_probs"),
    _plain("min_keep"),
    _plain("grammar"),
    _fixed("grammar_lazy", False),
    _fixed("grammar_triggers", ()),
    _fixed("preserved_tokens", ()),
    _plain("chat_format"),
    _plain("reasoning_format"),
    ("reasoning_in_content", lambda p: p.stream and p.reasoning_format == "deepseek-legacy"),
    _plain("generation_prompt"),
    _plain("samplers"),
    ("speculative.types", lambda params: ",".join(params.speculative_types) or "none"),
    _plain("timings_per_token"),
    _plain("post_sampling_probs"),
    _plain("backend_sampling"),
    ("lora", lambda params: tuple(_adapter(*adapter) for adapter in params.lora or ())),
)

_PRIVATE = frozenset(
    {
        "dry_sequence_breakers",
        "stop",
        "logit_bias",
        "grammar",
        "grammar_lazy",
        "grammar_triggers",
        "preserved_tokens",
    }
)
