"""How long the context of a worker and of each slot is, as in llama-server.

llama.cpp alone divides the trained context by the number of slots where no `-c` is given.
llama-server's `--fit`, which is on by default, gives each slot all of it, as far as memory reaches.
So does this, with two bounds: a KV cache in the host's memory takes at most a quarter of that, for
other workers may be there too; and the context is at least what llama.cpp alone would make.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from protocol.config.config import WorkerConfig
from worker.files.gguf_header import Header, cache_bytes
from worker.host.topology import quarter_of_memory

LONGEST = 1 << 24
"""Maximum context of a slot in tokens; more would not fit into any host."""
_PAD = 256
"""llama.cpp rounds a context up to this."""


def contexts(
    worker: WorkerConfig, n_ctx_train: int, fits: Callable[[WorkerConfig], bool]
) -> Iterator[WorkerConfig]:
    """Yield the configuration with the context to try first, then with smaller and smaller ones.

    One that was set, or `--fit off`, is tried alone. `fits` tells whether to try more than one
    trained context.
    """
    if worker.n_ctx or not worker.fit or not n_ctx_train:
        yield worker
        return
    n_ctx = n_ctx_train * (1 if worker.kv_unified else worker.n_slots)
    while n_ctx > n_ctx_train:
        larger = replace(worker, n_ctx=n_ctx)
        if fits(larger):
            yield larger
        n_ctx = max(n_ctx_train, n_ctx // 2)
    yield replace(worker, n_ctx=n_ctx)
    least = max(1, worker.fit_ctx)
    while n_ctx > least:
        n_ctx = max(least, n_ctx // 2)
        yield replace(worker, n_ctx=n_ctx)


def reachable_context(worker: WorkerConfig, n_ctx_train: int, n_ctx_original: int) -> int:
    """Return how long a context may be: the trained one, or what the YaRN of `--rope-scale` gives.

    `n_ctx_original` is what a model was trained on before its own YaRN; 0: it has none. Source:
    llama_init_from_model.
    """
    if worker.rope_scaling != "yarn" or not worker.rope_freq_scale:
        return n_ctx_train
    original = worker.yarn_orig_ctx or n_ctx_original or n_ctx_train
    return int(min(original / worker.rope_freq_scale, LONGEST))


def fits_host(header: Header, worker: WorkerConfig) -> bool:
    """Return whether a KV cache takes at most a quarter of the host's memory."""
    return cache_bytes(header, worker) <= quarter_of_memory()


def planned_cache(header: Header, worker: WorkerConfig, *, is_on_gpu: bool) -> int:
    """Return the bytes of the KV cache that a worker tries to make; 0 if the file lacks facts."""
    keys = ("context_length", "rope.scaling.original_context_length")
    n_train, n_original = (n if isinstance(n := header.of_model(key), int) else 0 for key in keys)
    n_ctx = reachable_context(worker, n_train, n_original)
    tried = contexts(worker, n_ctx, lambda one: is_on_gpu or fits_host(header, one))
    return cache_bytes(header, next(tried))


def slot_context(config: WorkerConfig, n_ctx_train: int) -> int:
    """Return the context of a slot: its part as by `-c` and `-np`, or with a unified cache all.

    It is at most the trained one, except where positions are scaled or shared.
    """
    total = config.n_ctx or n_ctx_train
    share = total if config.kv_unified else max(1, total // config.n_slots)
    if n_ctx_train and not config.rope_scaling and config.grp_attn_n == 1:
        share = min(share, n_ctx_train)
    padded = (share + _PAD - 1) // _PAD * _PAD
    return min(padded, config.n_ctx_per_slot or padded)
