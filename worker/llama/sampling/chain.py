"""From parameters to llama.cpp's samplers: one function per stage, in llama-server's order.

Source of the order: common/sampling.cpp, `common_sampler_init`. The grammar stands outside
(`sampler.py`), and so do the stages that llama.cpp does not have (`stages.py`).
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp.llama_cpp as lib

from protocol.errors import InvalidRequest
from protocol.wire.sampling import SamplingParams
from protocol.wire.values import DEFAULT_SAMPLERS
from worker.llama.sampling.greedy import GreedySampler, summed
from worker.llama.sampling.stages import (
    Dummy,
    InfillEnding,
    KeepNewline,
    RestoreNewline,
    Stage,
    TailFree,
)
from worker.llama.sampling.stateful import AdaptiveP, Mirostat, Xtc
from worker.llama.vocabulary import LlamaVocabulary


@dataclass(frozen=True, slots=True)
class SamplerModel:
    """What the samplers' constructors need besides the request's parameters."""

    vocabulary: LlamaVocabulary
    eog: Sequence[int]
    n_ctx: int
    """Size of one slot's context in tokens; a window of -1 is as long."""


class Chain:
    """Owns one llama.cpp sampler chain."""

    def __init__(self, samplers: Sequence[Any]) -> None:
        params = lib.llama_sampler_chain_default_params()
        params.no_perf = True
        self.handle = lib.llama_sampler_chain_init(params)
        for sampler in samplers:
            lib.llama_sampler_chain_add(self.handle, sampler)
        self.before_free: Callable[[], None] | None = None
        """Set by the user of the chain, not by the chain."""

    def apply(self, candidates: Any) -> None:
        """Run the chain over an array of candidates."""
        lib.llama_sampler_apply(self.handle, ctypes.byref(candidates))

    def accept(self, token: int) -> None:
        """Tell the stateful samplers which token was chosen."""
        lib.llama_sampler_accept(self.handle, token)

    def skip(self, n: int) -> None:
        """Let its last sampler, llama.cpp's `dist`, draw `n` random numbers and drop them.

        It draws among one candidate, too.
        """
        last = lib.llama_sampler_chain_get(self.handle, lib.llama_sampler_chain_n(self.handle) - 1)
        unused = Dummy(1)
        for _ in range(n):
            lib.llama_sampler_apply(last, unused.fresh())

    def free(self) -> None:
        """Free the chain and its samplers."""
        if self.before_free is not None:
            self.before_free()
            self.before_free = None
        if self.handle:
            lib.llama_sampler_free(self.handle)
            self.handle = None


_INFILL_CANDIDATES = 256
"""Candidates that llama.cpp's `infill` gets, the likeliest: it compares all pairs of them."""
MAX_BREAKERS = 32
"""Texts at which DRY begins anew: a task's start takes 0.3 s with so many, for 49,152 tokens."""
_BREAKER_BYTES = 40
"""llama.cpp's own limit."""
_ALMOST_ALL = 1 - 2**-24
"""The largest float32 below 1: as a top-p it sorts the candidates and drops none."""

Biases = tuple[tuple[int, float], ...]
"""Pairs of a token and what is added to its logit."""

Sampler = Any  # an opaque pointer of llama.cpp
Builder = Callable[[SamplingParams, SamplerModel], Sampler]


def window(last_n: int, model: SamplerModel) -> int:
    """Return the size of the window `last_n` in tokens: at most the context; below 0, all of it.

    llama.cpp allocates the whole window: 2,147,483,647 tokens would be 16 GiB.
    """
    return model.n_ctx if last_n < 0 else min(last_n, model.n_ctx)


def _breakers(p: SamplingParams) -> list[bytes]:
    """Return the texts at which DRY begins anew: each once, and as much of it as llama.cpp reads.

    It looks every token of the vocabulary up for each of them: 10 ms of 49,152 tokens.
    """
    texts = dict.fromkeys(
        text.encode(errors="replace")[:_BREAKER_BYTES] for text in p.dry_sequence_breakers
    )
    if len(texts) > MAX_BREAKERS:
        message = f"Field 'dry_sequence_breakers': more than {MAX_BREAKERS} different ones"
        raise InvalidRequest(message, param="dry_sequence_breakers")
    return list(texts)


def _penalties(p: SamplingParams, model: SamplerModel) -> Sampler:
    last_n = window(p.repeat_last_n, model)
    return lib.llama_sampler_init_penalties(
        model.vocabulary.n_tokens, last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
    )


def _dry(p: SamplingParams, model: SamplerModel) -> Sampler:
    last_n = window(p.dry_penalty_last_n, model)
    texts = _breakers(p)
    breakers = (ctypes.c_char_p * len(texts))(*texts)
    return lib.llama_sampler_init_dry(
        model.vocabulary.handle,
        p.dry_multiplier,
        p.dry_base,
        p.dry_allowed_length,
        last_n,
        breakers,
        len(texts),
    )


def _xtc(p: SamplingParams, _model: SamplerModel) -> Sampler:
    return lib.llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, p.min_keep, p.seed)


def _temperature(p: SamplingParams, _model: SamplerModel) -> Sampler:
    coldest = max(0.0, p.temperature)  # as in llama-server; it matters with a dynamic temperature
    return lib.llama_sampler_init_temp_ext(coldest, p.dynatemp_range, p.dynatemp_exponent)


BUILDERS: dict[str, Builder] = {
    "penalties": _penalties,
    "dry": _dry,
    "top_n_sigma": lambda p, _: lib.llama_sampler_init_top_n_sigma(p.top_n_sigma),
    "top_k": lambda p, _: lib.llama_sampler_init_top_k(p.top_k),
    "typ_p": lambda p, _: lib.llama_sampler_init_typical(p.typical_p, p.min_keep),
    "top_p": lambda p, _: lib.llama_sampler_init_top_p(p.top_p, p.min_keep),
    "min_p": lambda p, _: lib.llama_sampler_init_min_p(p.min_p, p.min_keep),
    "xtc": _xtc,
    "temperature": _temperature,
    "infill": lambda _, model: lib.llama_sampler_init_infill(model.vocabulary.handle),
}


def has_penalties(p: SamplingParams) -> bool:
    """Return whether the penalties change anything."""
    neutral = (p.repeat_penalty, p.presence_penalty, p.frequency_penalty) == (1.0, 0.0, 0.0)
    return "penalties" in p.samplers and p.repeat_last_n != 0 and not neutral


def has_dry(p: SamplingParams) -> bool:
    """Return whether DRY changes anything."""
    is_on = p.dry_multiplier > 0 and p.dry_base >= 1 and p.dry_penalty_last_n != 0
    return "dry" in p.samplers and is_on


def has_xtc(p: SamplingParams) -> bool:
    """Return whether XTC may drop tokens."""
    return p.xtc_probability > 0 and p.xtc_threshold <= 0.5


def is_greedy(p: SamplingParams) -> bool:
    """Return whether the chain always chooses the likeliest token."""
    reorders = has_penalties(p) or has_dry(p) or ("xtc" in p.samplers and p.xtc_probability > 0)
    drops_best = "typ_p" in p.samplers and p.typical_p < 1
    plain = p.mirostat == 0 and not reorders and not drops_best and "infill" not in p.samplers
    # Probabilities after the chain need the chain itself.
    is_cold = p.temperature <= 0 and p.dynatemp_range <= 0 and "temperature" in p.samplers
    return plain and is_cold and not p.post_sampling_probs and _no_adaptive(p)


def _needs_sorting(p: SamplingParams) -> bool:
    return p.top_k > 0 and ("top_p" not in p.samplers or p.top_p >= 1)


def open_greedy(p: SamplingParams, biases: Biases, model: SamplerModel) -> GreedySampler | None:
    """Return a cheaper chooser of the same token, if the chain only finds the greatest logit."""
    if not is_greedy(p):
        return None
    added = summed(_all_biases(biases, model))
    return None if added is None else GreedySampler(added)


def _no_adaptive(p: SamplingParams) -> bool:
    return "adaptive_p" not in order(p)


def order(p: SamplingParams) -> Sequence[str]:
    """Return the samplers in order, each once: a list may name one ten thousand times.

    The default order of today lacks one that a request may set by value alone: `tfs_z` comes after
    `top_k`, where it was in 2024.
    """
    if p.samplers != DEFAULT_SAMPLERS:
        return list(dict.fromkeys(p.samplers))
    names = list(p.samplers)
    if p.tfs_z < 1:
        names.insert(names.index("top_k") + 1, "tfs_z")
    return names


def build(p: SamplingParams, biases: Biases, model: SamplerModel) -> list["Chain | Stage"]:
    """Make the chains and stages of one task; their `apply` in order chooses a token."""
    names = order(p) if p.mirostat == 0 and not is_greedy(p) else ()
    if "dry" in names:
        _breakers(p)  # refuses before any sampler is made, which nothing would free
    parts: list[Chain | Stage] = []
    pending: list[Sampler] = _bias(biases, model)
    for name in names:
        if name == "tfs_z" and p.tfs_z < 1:
            parts += [Chain(pending), TailFree(p.tfs_z, p.min_keep)]
            pending = []
        elif name == "penalties" and p.penalize_nl is False and has_penalties(p):
            keep = KeepNewline(model.vocabulary.newline())
            parts += [Chain(pending), keep, Chain([_penalties(p, model)]), RestoreNewline(keep)]
            pending = []
        elif name == "xtc" and has_xtc(p):
            parts += [Chain(pending), Xtc(_xtc(p, model))]
            pending = []
        elif name in BUILDERS:
            if name == "infill":
                # It compares all pairs of candidates, which takes minutes over a whole vocabulary.
                parts += [Chain(pending), InfillEnding(model.eog, model.vocabulary.n_tokens)]
                pending = [lib.llama_sampler_init_top_k(_INFILL_CANDIDATES)]
            pending.append(BUILDERS[name](p, model))
            if name == "top_k" and p.backend_sampling and _needs_sorting(p):
                # The device does not sort, and a draw equals the host's only over the host's order.
                pending.append(lib.llama_sampler_init_top_p(_ALMOST_ALL, 0))
    return [*parts, *_last(p, pending, model)]


def _last(
    p: SamplingParams, pending: Sequence[Sampler], model: SamplerModel
) -> list[Chain | Stage]:
    """Make the last chain and the sampler that chooses, at its end or after it."""
    if is_greedy(p):
        return [Chain([*pending, lib.llama_sampler_init_greedy()])]
    if p.mirostat:
        temperature = lib.llama_sampler_init_temp(p.temperature)
        return [Chain([*pending, temperature]), Mirostat(p, model.vocabulary.n_tokens)]
    if not _no_adaptive(p):
        return [Chain(pending), AdaptiveP(p)]
    return [Chain([*pending, lib.llama_sampler_init_dist(p.seed)])]


def draws(p: SamplingParams) -> bool:
    """Return whether llama.cpp's own `dist` chooses, which draws once for each choice."""
    return not is_greedy(p) and p.mirostat == 0 and _no_adaptive(p)


def resolve_biases(p: SamplingParams, model: SamplerModel) -> Biases:
    """Return the biases that a request asks for, texts and `ignore_eos` turned into tokens."""
    biases = _resolved(p, model)
    if p.ignore_eos:
        biases += [(token, float("-inf")) for token in model.eog]
    return tuple(biases)


def _all_biases(asked: Biases, model: SamplerModel) -> list[tuple[int, float]]:
    never = [(token, float("-inf")) for token in model.vocabulary.suppressed()]
    return [*asked, *never]


def _bias(asked: Biases, model: SamplerModel) -> list[Sampler]:
    biases = _all_biases(asked, model)
    if not biases:
        return []
    array = (lib.llama_logit_bias * len(biases))()
    for entry, (token, bias) in zip(array, biases, strict=True):
        entry.token, entry.bias = token, bias
    n_tokens = model.vocabulary.n_tokens
    return [lib.llama_sampler_init_logit_bias(n_tokens, len(biases), array)]


def _resolved(p: SamplingParams, model: SamplerModel) -> list[tuple[int, float]]:
    """Turn texts into their tokens and refuse tokens that the vocabulary does not have."""
    resolved = []
    for token, bias in p.logit_bias:
        if isinstance(token, str):
            ids = model.vocabulary.tokenize(token, add_special=False, parse_special=False)
            resolved += [(id_, bias) for id_ in ids]
        elif 0 <= token < model.vocabulary.n_tokens:
            resolved.append((token, bias))
        else:
            last = model.vocabulary.n_tokens - 1
            raise InvalidRequest(
                f"Field 'logit_bias': token {token} is not between 0 and {last}", param="logit_bias"
            )
    return resolved
