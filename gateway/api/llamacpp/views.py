"""The answers of GET /props, /slots and /v1/models, with the keys of 2023, 2024 and today."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.api.results.settings import legacy_settings, metric_settings, settings
from protocol.version import version
from protocol.wire.facts import ModelCard, SlotReport, SystemPrompt
from protocol.wire.messages import Finish
from protocol.wire.sampling import SamplingParams

CHATML = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' + message.content + "
    "'<|im_end|>\\n' -}}{%- endfor -%}{%- if add_generation_prompt -%}"
    "{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""The template of a model without one of its own, as /props shows it."""


def slot(report: SlotReport, card: ModelCard, *, legacy: bool = False) -> dict[str, Any]:
    """Return one slot; the fields of its task are absent until it ran one.

    `legacy` gives `next_token` as the object of 2024 instead of today's array.
    """
    shown: dict[str, Any] = {
        "id": report.id,
        "n_ctx": card.n_ctx,
        "speculative": report.is_speculative,
        "is_processing": report.is_processing,
    }
    params = report.params
    if params is not None:
        following = _next_token(report)
        shown |= {
            "id_task": report.task_id,
            "n_prompt_tokens": report.n_past,
            "n_prompt_tokens_processed": report.n_prompt_processed,
            "n_prompt_tokens_cache": report.n_cached,
            "params": metric_settings(params) if report.prompt is None else settings(params),
            "next_token": following if legacy else [following],
        }
        shown |= metric_settings(params)
        shown |= legacy_settings(params, n_ctx=card.n_ctx, model=card.name)
        shown |= {"task_id": report.task_id, **_texts(report, params)}
    shown["state"] = int(report.is_processing)
    return shown


def _texts(report: SlotReport, params: SamplingParams) -> dict[str, Any]:
    """Return the texts of the client, or empty values under the same keys.

    llama-server shows them with LLAMA_SERVER_SLOTS_DEBUG only; the servers of 2023 and 2024 did.
    """
    if report.prompt is None:
        hidden = {"grammar": "", "stop": [], "logit_bias": [], "penalty_prompt_tokens": []}
        return {"prompt": "", **hidden}
    told = settings(params)
    shown = {key: told[key] for key in ("grammar", "stop", "logit_bias")}
    return {"prompt": report.prompt, "generated": report.generated, **shown}


def bare(report: SlotReport) -> SlotReport:
    """Return what every client may see of a slot: whether it runs a task."""
    return SlotReport(
        id=report.id, is_processing=report.is_processing, is_speculative=report.is_speculative
    )


_TEXTS = frozenset(
    {
        *("prompt", "generated", "grammar", "stop", "stopping_word", "logit_bias"),
        *("penalty_prompt_tokens", "generation_prompt", "dry_sequence_breakers"),
    }
)


def without_texts(shown: Any) -> Any:
    """Return a slot without texts of clients and models."""
    if isinstance(shown, list):
        return [without_texts(item) for item in shown]
    if not isinstance(shown, dict):
        return shown
    return {key: without_texts(value) for key, value in shown.items() if key not in _TEXTS}


def _next_token(report: SlotReport) -> dict[str, Any]:
    """Return how far a task is; of an ended one today's keys tell nothing, those of 2024 do."""
    runs = report.is_processing
    return {
        "has_next_token": report.has_next_token,
        "has_new_line": runs and report.has_new_line,
        "n_remain": report.n_remain if runs else -1,
        "n_decoded": report.n_decoded if runs else 0,
        "num_tokens_predicted": report.n_decoded,
        "stopped_eos": report.finish == Finish.EOS,
        "stopped_limit": report.finish == Finish.LIMIT,
        "stopped_word": report.finish == Finish.WORD,
        "stopping_word": "" if report.prompt is None else report.stopping_word,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFeatures:
    """Optional endpoints and pages of this server, as /props shows them."""

    slots: bool
    metrics: bool
    props: bool = False
    ui_settings: Mapping[str, Any] = field(default_factory=dict)
    """Initial settings of the pages."""
    ui: bool = False


def props(
    card: ModelCard, total_slots: int, features: ServerFeatures, system: SystemPrompt | None = None
) -> dict[str, Any]:
    """Return /props of one model; `system` is its current system prompt."""
    system = system or card.system_prompt
    # llama-server shows the options of its samplers alone; the servers of 2023 and 2024 all.
    defaults = metric_settings(replace(card.defaults, n_keep=0, n_predict=-1))
    flat = settings(card.defaults) | legacy_settings(
        card.defaults, n_ctx=card.n_ctx, model=card.name
    )
    return {
        "default_generation_settings": {"params": defaults, "n_ctx": card.n_ctx} | flat,
        "total_slots": total_slots,
        "model_alias": card.name,
        "model_ftype": card.ftype,
        "model_path": card.path,
        "modalities": {"vision": card.has_vision, "video": False, "audio": card.has_audio},
        "media_marker": card.media_marker or "<__media__>",
        "endpoint_slots": features.slots,
        "endpoint_props": features.props,
        "endpoint_metrics": features.metrics,
        "ui": features.ui,
        "ui_settings": dict(features.ui_settings),
        "chat_template": card.chat_template or CHATML,
        "chat_template_caps": _caps(card.chat_template or CHATML),
        "bos_token": card.bos_token,
        "eos_token": card.eos_token,
        "build_info": card.build,
        "is_sleeping": False,
        "cors_proxy_enabled": False,
        "assistant_name": system.assistant_name,
        "user_name": system.anti_prompt,
    }


def _caps(template: str) -> dict[str, bool]:
    """Return the template's capabilities; tools are always one, as a system text if need be."""
    return {
        "supports_object_arguments": False,
        "supports_parallel_tool_calls": True,
        "supports_preserve_reasoning": "reasoning_content" in template,
        "supports_reasoning_effort": "reasoning_effort" in template,
        "supports_string_content": True,
        "supports_system_role": True,
        "supports_tool_calls": True,
        "supports_tools": True,
        "supports_typed_content": False,
    }


def router_props(
    cards: Sequence[ModelCard], max_instances: int | None = None, *, autoload: bool = False
) -> dict[str, Any]:
    """Return /props of a pool of several models when none is named, as llama-server's router."""
    return {
        "role": "router",
        "max_instances": len(cards) if max_instances is None else max_instances,
        "models_autoload": autoload,
        "model_alias": "llama-server",
        "model_path": "none",
        "default_generation_settings": {"params": None, "n_ctx": 0},
        "ui_settings": {},
        "build_info": cards[0].build if cards else f"b{version()}",
        "cors_proxy_enabled": False,
    }


def models(cards: Sequence[ModelCard], created: int, states: Mapping[str, str]) -> dict[str, Any]:
    """Return /v1/models: OpenAI's list, with llama-server's additions and those of its router."""
    return {
        "models": [_ollama_model(card) for card in cards],
        "object": "list",
        "data": [model(card, created) | {"status": {"value": states[card.name]}} for card in cards],
    }


def model(card: ModelCard, created: int) -> dict[str, Any]:
    """Return the entry of a loaded model in the list."""
    return {
        "id": card.name,
        "aliases": list(card.aliases) or [card.name],
        "tags": list(card.tags),
        "object": "model",
        "architecture": {"input_modalities": _inputs(card), "output_modalities": ["text"]},
        "created": created,
        "owned_by": "llamacpp",
        "meta": {
            "vocab_type": card.vocab_type,
            "n_vocab": card.n_vocab,
            "n_ctx": card.n_ctx,
            "n_ctx_train": card.n_ctx_train,
            "n_embd": card.n_embd,
            "n_params": card.n_params,
            "size": card.size,
            "ftype": card.ftype,
        },
    }


def _ollama_model(card: ModelCard) -> dict[str, Any]:
    return {
        "name": card.name,
        "model": card.name,
        "modified_at": "",
        "size": "",
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [""],
        "capabilities": ["completion", *(["multimodal"] if len(_inputs(card)) > 1 else ())],
        "parameters": "",
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": "",
            "families": [""],
            "parameter_size": "",
            "quantization_level": "",
        },
    }


def _inputs(card: ModelCard) -> list[str]:
    others = (("image", card.has_vision), ("audio", card.has_audio))
    return ["text", *(name for name, is_taken in others if is_taken)]
