"""What guesses ahead for a worker, made from its configuration."""

from protocol.config import WorkerConfig
from protocol.errors import ConfigError
from worker.engine.backend import Backend
from worker.engine.draft import Drafter, Drafters
from worker.engine.lookup import Lookup
from worker.engine.ngramcache import CacheLookup
from worker.lookupfile import SavedLookup, read_cache
from worker.speculation import DRAFT_MODEL, NGRAM, NGRAM_CACHE, kinds


def open_drafter(config: WorkerConfig, backend: Backend) -> Drafter | None:
    """Make what guesses for a worker; raises `ConfigError` for what cannot work."""
    if kinds(config) and not backend.can_rewind:
        raise ConfigError("spec_type: recurrent memory cannot take guesses back; use none")
    drafters = {kind: _open(kind, config, backend) for kind in kinds(config)}
    return Drafters(drafters) if drafters else None


def _open(kind: str, config: WorkerConfig, backend: Backend) -> Drafter:
    if kind == NGRAM:
        return Lookup(config.spec_ngram_size_n, config.spec_ngram_size_m, config.n_draft_min)
    if kind == NGRAM_CACHE:
        n_vocab = backend.card.n_vocab
        static = read_cache(config.lookup_cache_static, n_vocab, may_be_new=False)
        dynamic = read_cache(config.lookup_cache_dynamic, n_vocab, may_be_new=True)
        lookup = CacheLookup(static, dynamic, config.n_draft, config.n_draft_min)
        return SavedLookup(lookup, config.lookup_cache_dynamic, n_vocab)
    if kind == DRAFT_MODEL and config.backend == "llama":
        # Imported here: a worker with the fake backend must not need llama.cpp.
        from worker.llama.draft import open_draft_model

        return open_draft_model(config, backend)
    raise ConfigError(f"spec_type '{kind}' needs a model; the fake backend has none")
