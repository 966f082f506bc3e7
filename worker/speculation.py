"""Speculative decoding from a configuration: which drafters there are, and how long they guess."""

from protocol.config import WorkerConfig
from protocol.errors import ConfigError
from worker.engine.backend import Backend
from worker.engine.draft import Drafter, Drafters
from worker.engine.lookup import Lookup
from worker.engine.ngramcache import CacheLookup
from worker.lookupfile import SavedLookup, read_cache

NONE, DRAFT_MODEL, NGRAM, NGRAM_CACHE = "none", "draft-simple", "ngram-simple", "ngram-cache"


def kinds(config: WorkerConfig) -> tuple[str, ...]:
    """Return the kinds of drafters in the order in which they are asked.

    Those that are named come first, then those whose files are given; `none` is nobody at all.
    """
    named = tuple(kind.strip() for kind in config.spec_type if kind.strip())
    with_cache = config.lookup_cache_static or config.lookup_cache_dynamic
    given = (NGRAM_CACHE,) * bool(with_cache) + (DRAFT_MODEL,) * bool(config.model_draft)
    for kind in named:
        if kind not in (NONE, DRAFT_MODEL, NGRAM, NGRAM_CACHE):
            raise ConfigError(
                f"spec_type '{kind}': must be one of {NONE}, {DRAFT_MODEL}, {NGRAM}, {NGRAM_CACHE}"
            )
    return () if NONE in named else tuple(dict.fromkeys((*named, *given)))


def longest_draft(config: WorkerConfig) -> int:
    """Return the most tokens that any drafter guesses at once; 0 is no speculation."""
    return max((_n_max(kind, config) for kind in kinds(config)), default=0)


def _n_max(kind: str, config: WorkerConfig) -> int:
    return config.spec_ngram_size_m if kind == NGRAM else config.n_draft


def open_drafter(config: WorkerConfig, backend: Backend) -> Drafter | None:
    """Make what guesses for a worker; raises `ConfigError` for what cannot work."""
    if kinds(config) and not backend.can_rewind:
        raise ConfigError("spec_type: recurrent memory cannot take guesses back; use none")
    drafters = [_open(kind, config, backend) for kind in kinds(config)]
    return Drafters(drafters) if drafters else None


def _open(kind: str, config: WorkerConfig, backend: Backend) -> Drafter:
    if kind == NGRAM:
        return Lookup(config.spec_ngram_size_n, config.spec_ngram_size_m, config.n_draft_min)
    if kind == NGRAM_CACHE:
        n_vocab = backend.card.n_vocab
        static = read_cache(config.lookup_cache_static, n_vocab, may_be_new=False)
        dynamic = read_cache(config.lookup_cache_dynamic, n_vocab, may_be_new=True)
        lookup = CacheLookup(static, dynamic, config.n_draft, config.n_draft_min)
        return SavedLookup(lookup, config.lookup_cache_dynamic)
    if kind == DRAFT_MODEL and config.backend == "llama":
        # Imported here: a worker with the fake backend must not need llama.cpp.
        from worker.llama.draft import open_draft_model

        return open_draft_model(config, backend)
    raise ConfigError(f"spec_type '{kind}' needs a model; the fake backend has none")
