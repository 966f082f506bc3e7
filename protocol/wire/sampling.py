"""Every generation and sampling field of a request, declared once.

Validation, aliases, wire, `/props`, `docs/using/sampling.md` and the `[worker.sampling]` table of a
configuration are all read from this table. Defaults are llama-server's of today; where the seeds
and llama-server disagree the reason stands beside the field. `stage` says who consumes a field.
"""

from dataclasses import dataclass

from protocol.wire.schema import param
from protocol.wire.shapes import FLOAT32_MAX, INT32_MAX, Clamp, TextShape
from protocol.wire.values import (
    ADAPTERS,
    BIASES,
    BREAKERS,
    DEFAULT_SAMPLERS,
    GRAMMAR,
    GUESSER_NAMES,
    PENALTY_PROMPT,
    SAMPLERS,
    SEED,
    STOPS,
    TAGS,
    read_breakers,
    read_chat_format,
    read_grammar,
    read_guessers,
    read_logit_bias,
    read_lora,
    read_penalty_prompt,
    read_samplers,
    read_seed,
    read_stop,
    take_logit_bias,
    take_samplers,
)

UNSET_SEED = 0xFFFFFFFF
"""llama.cpp's LLAMA_DEFAULT_SEED: the worker draws one."""

__all__ = ["INT32_MAX", "MAX_PROBS", "UNSET_SEED", "SamplingParams"]

MAX_PROBS = 1024
"""Rivals of a token that an answer tells; llama-server has no bound: megabytes a token."""
_REAL = {"low": -FLOAT32_MAX, "high": FLOAT32_MAX, "clamps": Clamp.BOTH}
"""What a float of llama.cpp can hold."""
_SHARE = {"low": 0, "high": 1, "clamps": Clamp.BOTH}
_PENALTY = {"low": -1e6, "high": 1e6, "clamps": Clamp.BOTH}
_MARK_CHARS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What one task asks of the sampler chain and the engine; frozen, as it crosses the wire."""

    seed: int = param(
        UNSET_SEED, "Seed of the draw; -1 picks one.", read=read_seed, shape=SEED, stage="sampler"
    )
    temperature: float = param(
        0.8,
        "Randomness of the choice; 0 is greedy, below 0 is greedy with plain probabilities.",
        "temp",
        stage="sampler",
        **_REAL,
    )
    dynatemp_range: float = param(
        0.0, "Temperature moves within ± this by entropy; 0 is off.", stage="sampler", **_REAL
    )
    dynatemp_exponent: float = param(
        1.0, "Shape of the dynamic temperature.", stage="sampler", **_REAL
    )
    top_k: int = param(
        40,
        "Keep the k likeliest tokens; 0 or below is off.",
        low=0,
        high=INT32_MAX,
        clamps=Clamp.BOTH,
        stage="sampler",
    )
    top_p: float = param(
        0.95, "Keep the likeliest tokens up to this mass.", stage="sampler", **_SHARE
    )
    min_p: float = param(
        0.05, "Drop tokens below this share of the best.", stage="sampler", **_SHARE
    )
    top_n_sigma: float = param(
        -1.0,
        "Keep logits within n standard deviations of the best; -1 is off.",
        stage="sampler",
        **_REAL,
    )
    xtc_probability: float = param(
        0.0, "Chance of dropping the top choices; 0 is off.", stage="sampler", **_SHARE
    )
    xtc_threshold: float = param(
        0.1, "Choices above this may be dropped; > 0.5 is off.", stage="sampler", **_SHARE
    )
    typical_p: float = param(
        1.0, "Locally typical sampling; 1 is off.", "typ_p", stage="sampler", **_REAL
    )
    tfs_z: float = param(1.0, "Tail free sampling; 1 is off.", stage="sampler", **_SHARE)
    repeat_last_n: int = param(
        64,
        "Window of the penalties in tokens; 0 is off, -1 the context.",
        low=-1,
        high="n_ctx",
        clamps=Clamp.HIGH,
        stage="sampler",
    )
    repeat_penalty: float = param(
        1.0, "Factor against repetition; 1 is off.", low=1e-6, high=1e6, stage="sampler"
    )
    presence_penalty: float = param(
        0.0, "Penalty for having occurred.", stage="sampler", **_PENALTY
    )
    frequency_penalty: float = param(0.0, "Penalty per occurrence.", stage="sampler", **_PENALTY)
    penalize_nl: bool | None = param(
        None,
        "false keeps the newline out of the penalties; unset is llama.cpp's way of today.",
        stage="sampler",
    )
    penalty_prompt: str | tuple[int, ...] | None = param(
        None,
        "Stands for the prompt in the penalty window; unset is the prompt itself.",
        read=read_penalty_prompt,
        shape=PENALTY_PROMPT,
        stage="sampler",
    )
    dry_multiplier: float = param(
        0.0, "DRY repetition penalty; 0 or below is off.", stage="sampler", **_REAL
    )
    dry_base: float = param(
        1.75,
        "Growth of the DRY penalty; below 1 is the default.",
        low=1,
        high=FLOAT32_MAX,
        clamps=Clamp.BOTH,
        low_is_default=True,
        stage="sampler",
    )
    dry_allowed_length: int = param(
        2, "Repeats up to this length are free.", low=0, high=INT32_MAX, stage="sampler"
    )
    dry_penalty_last_n: int = param(
        64,
        "Window of DRY in tokens; 0 is off, -1 the context.",
        low=-1,
        high="n_ctx",
        clamps=Clamp.HIGH,
        stage="sampler",
    )
    dry_sequence_breakers: tuple[str, ...] = param(
        ("\n", ":", '"', "*"),
        "Texts that end a DRY match.",
        read=read_breakers,
        shape=BREAKERS,
        stage="sampler",
    )
    mirostat: int = param(
        0,
        "1 or 2 replaces the truncating samplers.",
        low=0,
        high=2,
        clamps=Clamp.BOTH,
        stage="sampler",
    )
    mirostat_tau: float = param(5.0, "Target surprise of mirostat.", stage="sampler", **_REAL)
    mirostat_eta: float = param(0.1, "Learning rate of mirostat.", stage="sampler", **_REAL)
    adaptive_target: float = param(
        -1.0,
        "Target probability of adaptive-p; below 0 is off.",
        low=-FLOAT32_MAX,
        high=1,
        clamps=Clamp.BOTH,
        stage="sampler",
    )
    adaptive_decay: float = param(0.9, "Memory of adaptive-p.", low=0, high=0.99, stage="sampler")
    min_keep: int = param(
        0, "Truncating samplers keep at least this many.", low=0, high=INT32_MAX, stage="sampler"
    )
    samplers: tuple[str, ...] = param(
        DEFAULT_SAMPLERS,
        "Samplers in order.",
        read=read_samplers,
        take=take_samplers,
        shape=SAMPLERS,
        stage="sampler",
    )
    logit_bias: tuple[tuple[int | str, float], ...] = param(
        (),
        "Added to logits; false is never.",
        read=read_logit_bias,
        take=take_logit_bias,
        shape=BIASES,
        stage="sampler",
    )
    ignore_eos: bool = param(False, "Never choose an end-of-generation token.", stage="sampler")
    grammar: str = param(
        "", "GBNF that the text must match.", read=read_grammar, shape=GRAMMAR, stage="sampler"
    )
    reasoning_budget_tokens: int = param(
        -1,
        "Tokens of thought before they are ended; -1 is no limit.",
        "thinking_budget_tokens",
        low=-1,
        high=INT32_MAX,
        stage="engine",
    )
    reasoning_budget_message: str = param(
        "",
        "Written before the mark that ends thoughts by force.",
        max_chars=_MARK_CHARS,
        stage="engine",
    )
    reasoning_budget_start_tag: str = param(
        "",
        "What begins thoughts; in chats the template says it.",
        max_chars=_MARK_CHARS,
        stage="engine",
    )
    reasoning_budget_end_tags: tuple[str, ...] = param(
        (),
        "What ends thoughts, the first also by force; in chats the template says it.",
        "reasoning_budget_end_tag",
        read=read_stop,
        shape=TAGS,
        stage="engine",
    )
    reasoning_control: bool = param(
        False, "Let thoughts be ended from outside while they last.", stage="engine"
    )
    generation_prompt: str = param(
        "",
        "What of the answer the prompt holds; in chats the template says it.",
        max_chars=_MARK_CHARS,
        stage="engine",
    )
    n_probs: int = param(
        0,
        "Report this many likeliest tokens for each.",
        "logprobs",
        low=0,
        high=MAX_PROBS,
        clamps=Clamp.BOTH,
        stage="engine",
    )
    post_sampling_probs: bool = param(
        False, "Report probabilities after the sampler chain.", stage="engine"
    )
    backend_sampling: bool = param(
        False, "Choose tokens on the device of the model; the text is the same.", stage="sampler"
    )
    stop: tuple[str, ...] = param(
        (), "Texts that end the generation.", read=read_stop, shape=STOPS, stage="engine"
    )
    n_predict: int = param(
        -1,
        "Tokens to generate; -1 is no limit.",
        "max_completion_tokens",
        "max_tokens",
        low=-1,
        high=INT32_MAX,
        stage="engine",
    )
    t_max_predict_ms: int = param(
        -1,
        "Time limit, checked at a newline; -1 is none.",
        low=-1,
        high=2**63 - 1,
        stage="engine",
    )
    n_indent: int = param(
        0, "Stop at a line with less indentation.", low=0, high=INT32_MAX, stage="engine"
    )
    n_keep: int = param(
        0,
        "Prompt tokens kept by a context shift; -1 is all.",
        low=-1,
        high=INT32_MAX,
        stage="engine",
    )
    n_discard: int = param(
        0, "Tokens dropped by a context shift; 0 is half.", low=0, high=INT32_MAX, stage="engine"
    )
    cache_prompt: bool = param(True, "Reuse the common prefix of the slot's cache.", stage="engine")
    lora: tuple[tuple[int, float], ...] | None = param(
        None,
        "Adapters and their scales for this request; unset is the worker's setting.",
        read=read_lora,
        shape=ADAPTERS,
        stage="engine",
    )
    speculative_types: tuple[str, ...] = param(
        (),
        "Who may guess ahead, of those that the worker has; unset is all of them.",
        "speculative.type",
        "speculative.types",
        read=read_guessers,
        shape=GUESSER_NAMES,
        stage="engine",
    )
    speculative_n_max: int | None = param(
        None,
        "Most tokens guessed at once, up to the worker's own limit; unset is that.",
        "speculative.n_max",
        low=0,
        high=INT32_MAX,
        stage="engine",
    )
    speculative_n_min: int | None = param(
        None,
        "Guesses of fewer tokens are dropped; unset is as the worker does.",
        "speculative.n_min",
        low=0,
        high=INT32_MAX,
        stage="engine",
    )
    speculative_p_min: float | None = param(
        None,
        "A draft model's guess ends before a token less likely; unset is as the worker does.",
        "speculative.p_min",
        low=0,
        high=1,
        stage="engine",
    )
    id_slot: int = param(
        -1, "Run in this slot; -1 is any.", "slot_id", low=-1, high=INT32_MAX, stage="gateway"
    )
    chat_format: str = param(
        "Content-only",
        "The parser of the answer, told in `generation_settings`; it cannot be chosen.",
        read=read_chat_format,
        shape=TextShape(most=64),
        stage="gateway",
    )
    reasoning_format: str = param(
        "none",
        "What becomes of thoughts in a chat; unset is as the server says.",
        choices=("none", "auto", "deepseek", "deepseek-legacy"),
        stage="gateway",
    )
    n: int = param(
        1,
        "Number of choices; the seeds of the later ones count up.",
        "n_cmpl",
        low=1,
        high=128,
        stage="gateway",
    )
    stream: bool = param(False, "Send each token as it comes.", stage="gateway")
    timings_per_token: bool = param(False, "Timings in every chunk.", stage="engine")
    return_tokens: bool = param(False, "Token ids in the final result.", stage="gateway")
    return_progress: bool = param(False, "Chunks that tell of the prompt.", stage="engine")
    response_fields: tuple[str, ...] = param(
        (),
        "Return only these fields; a/b goes into objects.",
        max_items=256,
        max_chars=256,
        stage="gateway",
    )
