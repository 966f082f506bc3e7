"""Opens the drafter of a worker, as configured."""

import logging

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from worker.engine.backend import Backend
from worker.engine.speculation.draft import Drafter, Drafters
from worker.engine.speculation.lookup import PromptLookup
from worker.engine.speculation.ngram.ngram_map import MapLookup
from worker.engine.speculation.ngram.ngram_mod import ModLookup
from worker.engine.speculation.ngram_cache import CacheLookup
from worker.speculation.kinds import (
    DRAFT_MODEL,
    NGRAM,
    NGRAM_CACHE,
    NGRAM_MAP,
    NGRAM_MAP4,
    NGRAM_MOD,
    kinds,
)
from worker.speculation.lookup_file import SavedLookup, read_cache

logger = logging.getLogger(__name__)


def open_drafter(config: WorkerConfig, backend: Backend) -> Drafter | None:
    """Return the drafter of a worker, or None; raises `ConfigError` if it cannot be opened."""
    if kinds(config) and not backend.can_rewind:
        cause = "the model's memory cannot drop the tokens of a rejected draft"
        action = "answers are generated without drafts"
        logger.warning("no speculative decoding", extra={"cause": cause, "action": action})
        return None
    drafters = {kind: _open(kind, config, backend) for kind in kinds(config)}
    return Drafters(drafters) if drafters else None


def _open(kind: str, config: WorkerConfig, backend: Backend) -> Drafter:
    if kind == NGRAM:
        return PromptLookup(config.spec_ngram_size_n, config.spec_ngram_size_m, config.n_draft_min)
    if kind in (NGRAM_MAP, NGRAM_MAP4):
        return _map_lookup(config, counts=kind == NGRAM_MAP4)
    if kind == NGRAM_MOD:
        return ModLookup(config.spec_mod_match, config.spec_mod_min, config.spec_mod_max)
    if kind == NGRAM_CACHE:
        n_vocab = backend.card.n_vocab
        static = read_cache(config.lookup_cache_static, n_vocab)
        dynamic = read_cache(config.lookup_cache_dynamic, n_vocab, may_be_new=True)
        lookup = CacheLookup(static, dynamic, config.n_draft, config.n_draft_min)
        return SavedLookup(lookup, config.lookup_cache_dynamic, n_vocab)
    if kind == DRAFT_MODEL and config.backend == "llama":
        # Imported here: a worker with the fake backend must run without llama.cpp.
        from worker.llama.draft import open_draft_model

        return open_draft_model(config, backend)
    raise ConfigError(f"spec_type '{kind}' needs a model; the fake backend has none")


def _map_lookup(config: WorkerConfig, *, counts: bool) -> MapLookup:
    if counts:
        size, n_max = config.spec_map4_size_n, config.spec_map4_size_m
        return MapLookup(size, n_max, min_hits=config.spec_map4_min_hits, counts=True)
    size, n_max = config.spec_map_size_n, config.spec_map_size_m
    return MapLookup(size, n_max, min_hits=config.spec_map_min_hits)
