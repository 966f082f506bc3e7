"""The request fields that configure the sampler chain, declared once.

`SamplingParams` in `protocol/wire/sampling.py` adds the fields of the engine and the gateway.
"""

from dataclasses import dataclass

from protocol.wire.schema import param
from protocol.wire.shapes import FLOAT32_MAX, INT32_MAX, Clamp
from protocol.wire.values import (
    BIASES,
    BREAKERS,
    DEFAULT_SAMPLERS,
    GRAMMAR,
    PENALTY_PROMPT,
    SAMPLERS,
    SEED,
    read_breakers,
    read_grammar,
    read_logit_bias,
    read_penalty_prompt,
    read_samplers,
    read_seed,
    take_logit_bias,
    take_samplers,
)

UNSET_SEED = 0xFFFFFFFF
"""llama.cpp's LLAMA_DEFAULT_SEED: the worker draws one."""

_REAL = {"low": -FLOAT32_MAX, "high": FLOAT32_MAX, "clamps": Clamp.BOTH}
"""What a float of llama.cpp can hold."""
_SHARE = {"low": 0, "high": 1, "clamps": Clamp.REQUEST}
_PENALTY = {"low": -1e6, "high": 1e6, "clamps": Clamp.BOTH}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerParams:
    """The fields of a request that configure its sampler chain."""

    seed: int = param(
        UNSET_SEED,
        "Seed of the random choice; -1: a random one.",
        read=read_seed,
        shape=SEED,
    )
    temperature: float = param(
        0.8,
        "Randomness of the choice: 0 always takes the likeliest token; below 0 as well, and "
        "reports plain probabilities.",
        "temp",
        **_REAL,
    )
    dynatemp_range: float = param(
        0.0,
        "Dynamic temperature: it moves by up to this much with the entropy; 0: off.",
        **_REAL,
    )
    dynatemp_exponent: float = param(1.0, "Dynamic temperature: exponent of the entropy.", **_REAL)
    top_k: int = param(
        40,
        "Choose among the k likeliest tokens; 0 or below: off.",
        low=0,
        high=INT32_MAX,
        clamps=Clamp.REQUEST,
    )
    top_p: float = param(
        0.95,
        "Choose among the likeliest tokens whose probabilities add up to this; 1: off.",
        **_SHARE,
    )
    min_p: float = param(
        0.05,
        "Drop tokens that are less likely than this share of the likeliest; 0: off.",
        **_SHARE,
    )
    top_n_sigma: float = param(
        -1.0,
        "Drop tokens whose logit is more than n standard deviations below the best; below 0: off.",
        **_REAL,
    )
    xtc_probability: float = param(
        0.0,
        "XTC: probability that the likeliest tokens are dropped; 0: off.",
        **_SHARE,
    )
    xtc_threshold: float = param(
        0.1,
        "XTC: only tokens at least this likely may be dropped; above 0.5: off.",
        **_SHARE,
    )
    typical_p: float = param(
        1.0,
        "Locally typical sampling: probability mass that is kept; 1: off.",
        "typ_p",
        **_REAL,
    )
    tfs_z: float = param(
        1.0,
        "Tail-free sampling: mass of the second derivative that is kept; 1: off.",
        **_SHARE,
    )
    repeat_last_n: int = param(
        64,
        "Number of last tokens that the penalties look at; 0: off, -1: the whole context.",
        low=-1,
        high="n_ctx",
        clamps=Clamp.HIGH,
    )
    repeat_penalty: float = param(
        1.0,
        "Divide the logit of a token that has occurred by this; 1: off.",
        low=1e-6,
        high=1e6,
    )
    presence_penalty: float = param(
        0.0,
        "Subtract this from the logit of a token that has occurred; 0: off.",
        **_PENALTY,
    )
    frequency_penalty: float = param(
        0.0,
        "Subtract this from the logit of a token for each time it has occurred; 0: off.",
        **_PENALTY,
    )
    penalize_nl: bool | None = param(
        None, "Apply the penalties to newlines; unset: as llama.cpp does today."
    )
    penalty_prompt: str | tuple[int, ...] | None = param(
        None,
        "Text or tokens that the penalties see instead of the prompt; unset: the prompt.",
        read=read_penalty_prompt,
        shape=PENALTY_PROMPT,
    )
    dry_multiplier: float = param(
        0.0,
        "DRY: strength of the penalty on repeated sequences; 0 or below: off.",
        **_REAL,
    )
    dry_base: float = param(
        1.75,
        "DRY: factor by which the penalty grows with each repeated token; below 1: the default.",
        low=1,
        high=FLOAT32_MAX,
        clamps=Clamp.BOTH,
        low_is_default=True,
    )
    dry_allowed_length: int = param(
        2,
        "DRY: repeated sequences up to this many tokens are not penalised.",
        low=0,
        high=INT32_MAX,
    )
    dry_penalty_last_n: int = param(
        64,
        "DRY: number of last tokens searched for repetitions; 0: off, -1: the whole context.",
        low=-1,
        high="n_ctx",
        clamps=Clamp.HIGH,
    )
    dry_sequence_breakers: tuple[str, ...] = param(
        ("\n", ":", '"', "*"),
        "DRY: texts that a repeated sequence never reaches across; as an option, one each time,"
        " and `none` for none.",
        read=read_breakers,
        shape=BREAKERS,
    )
    mirostat: int = param(
        0,
        "Mirostat version, which replaces the other samplers: 0 off, 1, 2.",
        low=0,
        high=2,
        clamps=Clamp.BOTH,
    )
    mirostat_tau: float = param(5.0, "Mirostat: target surprise, in bits per token.", **_REAL)
    mirostat_eta: float = param(0.1, "Mirostat: learning rate.", **_REAL)
    adaptive_target: float = param(
        -1.0,
        "Adaptive-p: probability that chosen tokens should have on average; below 0: off.",
        low=-FLOAT32_MAX,
        high=1,
        clamps=Clamp.BOTH,
    )
    adaptive_decay: float = param(
        0.9,
        "Adaptive-p: weight of earlier tokens in that average.",
        low=0,
        high=0.99,
    )
    min_keep: int = param(
        0,
        "Fewest tokens that a sampler which drops tokens must keep.",
        low=0,
        high=INT32_MAX,
    )
    samplers: tuple[str, ...] = param(
        DEFAULT_SAMPLERS,
        "Samplers in the order in which they run; as an option, names separated by semicolons.",
        read=read_samplers,
        take=take_samplers,
        shape=SAMPLERS,
    )
    logit_bias: tuple[tuple[int | str, float], ...] = param(
        (),
        "Add a bias to the logits of tokens; as an option TOKEN_ID+BIAS or TOKEN_ID-BIAS, in a "
        "request `false` forbids the token.",
        read=read_logit_bias,
        take=take_logit_bias,
        shape=BIASES,
    )
    ignore_eos: bool = param(False, "Never choose a token that ends the generation.")
    grammar: str = param(
        "",
        "GBNF grammar that the text must match; empty: none.",
        read=read_grammar,
        shape=GRAMMAR,
    )
