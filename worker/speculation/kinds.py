"""Configuration of speculative decoding: the kinds of drafters, and lengths of their drafts."""

import logging
from dataclasses import replace

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from protocol.wire.values import SPECULATIVE_TYPES

logger = logging.getLogger(__name__)

NONE, DRAFT_MODEL, NGRAM, NGRAM_CACHE, NGRAM_MAP, NGRAM_MAP4, NGRAM_MOD = SPECULATIVE_TYPES
_OTHERS = frozenset({"draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark"})
"""Kinds of llama-server that are not here: they draft with a head that belongs to the model."""


def kinds(config: WorkerConfig) -> tuple[str, ...]:
    """Return the kinds of drafters in the order in which they are tried.

    Named kinds come first, then those whose files are given; `none` turns all off. A draft model
    that is named without its file is left out.
    """
    named = _named(config)
    with_cache = config.lookup_cache_static or config.lookup_cache_dynamic
    has_model = config.model_draft and not _OTHERS & {*named}  # else its file is their head
    given = (NGRAM_CACHE,) * bool(with_cache) + (DRAFT_MODEL,) * bool(has_model)
    for kind in named:
        if kind not in SPECULATIVE_TYPES and kind not in _OTHERS:
            raise ConfigError(f"spec_type '{kind}': must be one of {', '.join(SPECULATIVE_TYPES)}")
    there = {*SPECULATIVE_TYPES} - ({DRAFT_MODEL} if not config.model_draft else set())
    ours = (kind for kind in (*named, *given) if kind in there)
    return () if NONE in named else tuple(dict.fromkeys(ours))


def _named(config: WorkerConfig) -> tuple[str, ...]:
    return tuple(kind.strip() for kind in config.spec_type if kind.strip())


def longest_draft(config: WorkerConfig) -> int:
    """Return the longest draft of any drafter, in tokens; 0 without speculation."""
    return max((_n_max(kind, config) for kind in kinds(config)), default=0)


def with_speculation(config: WorkerConfig) -> WorkerConfig:
    """Fill in the request defaults of speculation, as far as the configuration leaves them out."""
    for kind in _named(config):
        if kind in _OTHERS:
            _warn(f"spec_type {kind} is not there; it changes no answer", "leave it out")
        elif kind == DRAFT_MODEL and not config.model_draft:
            _warn(f"spec_type {kind} has no model", "name a model_draft (-md FILE)")
    params = config.sampling
    ours, n_max = kinds(config) or (NONE,), longest_draft(config)
    for kind in params.speculative_types:
        if kind not in (*ours, NONE):
            raise ConfigError(f"sampling.speculative_types: {kind} is not among {', '.join(ours)}")
    if params.speculative_n_max is not None:
        n_max = min(n_max, params.speculative_n_max)
    n_min, p_min = params.speculative_n_min, params.speculative_p_min
    params = replace(
        params,
        speculative_types=params.speculative_types or ours,
        speculative_n_max=n_max,
        speculative_n_min=config.n_draft_min if n_min is None else n_min,
        speculative_p_min=config.draft_p_min if p_min is None else p_min,
    )
    return replace(config, sampling=params)


def _warn(cause: str, hint: str) -> None:
    logger.warning("option without effect", extra={"cause": cause, "hint": hint})


def _n_max(kind: str, config: WorkerConfig) -> int:
    longest = {
        NGRAM: config.spec_ngram_size_m,
        NGRAM_MAP: config.spec_map_size_m,
        NGRAM_MAP4: config.spec_map4_size_m,
        NGRAM_MOD: config.spec_mod_max,
    }
    return longest.get(kind, config.n_draft)
