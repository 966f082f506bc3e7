"""Every generation and sampling field of a request, declared once.

Validation, aliases, wire, `/props`, `docs/using/sampling.md` and the `[worker.sampling]` table of a
configuration are all read from this table. Defaults are llama-server's of today; where those of
2023 and 2024 were different, the reason stands beside the field.
"""

from dataclasses import dataclass

from protocol.wire.sampler_params import UNSET_SEED, SamplerParams
from protocol.wire.schema import param
from protocol.wire.shapes import INT32_MAX, Clamp, TextShape
from protocol.wire.values import (
    ADAPTERS,
    SPECULATIVE_TYPE_LIST,
    STOPS,
    TAGS,
    read_chat_format,
    read_lora,
    read_speculative_types,
    read_stop,
)

__all__ = ["INT32_MAX", "MAX_PROBS", "UNSET_SEED", "SamplingParams"]

MAX_PROBS = 1024
"""Most alternatives shown for a token; llama-server has no bound: megabytes a token."""
_MARK_CHARS = 4096
"""Characters of a text that marks the beginning or the end of reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(SamplerParams):
    """What one task asks of the sampler chain and the engine; frozen, as it crosses the wire."""

    reasoning_budget_tokens: int = param(
        -1,
        "Largest number of reasoning tokens; then the reasoning is ended. -1: no limit.",
        "thinking_budget_tokens",
        low=-1,
        high=INT32_MAX,
    )
    reasoning_budget_message: str = param(
        "",
        "Text written before the reasoning is ended because of its budget.",
        max_chars=_MARK_CHARS,
    )
    reasoning_budget_start_tag: str = param(
        "",
        "Text that starts the reasoning, for plain prompts; chats take it from the template.",
        max_chars=_MARK_CHARS,
    )
    reasoning_budget_end_tags: tuple[str, ...] = param(
        (),
        "Texts that end the reasoning, for plain prompts; the first is written when the budget "
        "is used up.",
        "reasoning_budget_end_tag",
        read=read_stop,
        shape=TAGS,
    )
    reasoning_control: bool = param(
        False,
        "Let POST /v1/chat/completions/control end the reasoning of this answer.",
    )
    generation_prompt: str = param(
        "",
        "End of the prompt that is part of the answer already; chats take it from the template.",
        max_chars=_MARK_CHARS,
    )
    n_probs: int = param(
        0,
        "Report the n likeliest tokens beside each chosen one; 0: none.",
        "logprobs",
        low=0,
        high=MAX_PROBS,
        clamps=Clamp.BOTH,
    )
    post_sampling_probs: bool = param(
        False, "Report probabilities after the samplers instead of before."
    )
    backend_sampling: bool = param(
        False,
        "Choose tokens on the device of the model where that gives the same text.",
    )
    stop: tuple[str, ...] = param(
        (),
        "Texts that end the generation; as an option, one each time.",
        read=read_stop,
        shape=STOPS,
    )
    n_predict: int = param(
        -1,
        "Largest number of tokens to generate; -1: no limit.",
        "max_completion_tokens",
        "max_tokens",
        low=-1,
        high=INT32_MAX,
    )
    t_max_predict_ms: int = param(
        -1,
        "Milliseconds after which the generation ends at the next newline; -1: no limit.",
        low=-1,
        high=2**63 - 1,
    )
    n_indent: int = param(
        0,
        "End the generation at a line that is indented by fewer spaces; 0: off.",
        low=0,
        high=INT32_MAX,
    )
    n_keep: int = param(
        0,
        "Prompt tokens that a context shift keeps; -1: all.",
        low=-1,
        high=INT32_MAX,
    )
    n_discard: int = param(
        0,
        "Tokens that a context shift drops; 0: half of those that it may drop.",
        low=0,
        high=INT32_MAX,
    )
    cache_prompt: bool = param(True, "Reuse cached tokens that this prompt begins with.")
    lora: tuple[tuple[int, float], ...] | None = param(
        None,
        "LoRA adapters and their scales for this request; unset: the model's setting.",
        read=read_lora,
        shape=ADAPTERS,
    )
    speculative_types: tuple[str, ...] = param(
        (),
        "Methods of speculative decoding to use, of those that the worker has; unset: all of them.",
        "speculative.type",
        "speculative.types",
        read=read_speculative_types,
        shape=SPECULATIVE_TYPE_LIST,
    )
    speculative_n_max: int | None = param(
        None,
        "Largest number of tokens drafted at once, up to the worker's limit; unset: that limit.",
        "speculative.n_max",
        low=0,
        high=INT32_MAX,
    )
    speculative_n_min: int | None = param(
        None,
        "Drafts of fewer tokens are not used; unset: the worker's setting.",
        "speculative.n_min",
        low=0,
        high=INT32_MAX,
    )
    speculative_p_min: float | None = param(
        None,
        "A draft ends before a token less likely than this; unset: the worker's setting.",
        "speculative.p_min",
        low=0,
        high=1,
    )
    id_slot: int = param(-1, "Slot to run in; -1: any.", "slot_id", low=-1, high=INT32_MAX)
    chat_format: str = param(
        "Content-only",
        "Name of the parser of the answer, shown in `generation_settings`; a request cannot "
        "choose it.",
        read=read_chat_format,
        shape=TextShape(max_length=64),
    )
    reasoning_format: str = param(
        "none",
        "Where the reasoning of a chat goes; unset: the server's setting.",
        choices=("none", "auto", "deepseek", "deepseek-legacy"),
    )
    n: int = param(
        1,
        "Number of answers; each has the seed of the one before plus one.",
        "n_cmpl",
        low=1,
        high=128,
    )
    stream: bool = param(False, "Send each token as an event when it is there.")
    timings_per_token: bool = param(False, "Add timings to every event.")
    return_tokens: bool = param(False, "Add the token ids to the answer.")
    return_progress: bool = param(False, "Send events while the prompt is read.")
    response_fields: tuple[str, ...] = param(
        (),
        "Fields of the answer to return; a/b is field b of object a. Empty: all.",
        max_items=256,
        max_chars=256,
    )
