"""The keys of a `[[worker]]` table about speculative decoding."""

from dataclasses import dataclass

from protocol.wire.sampling import INT32_MAX
from protocol.wire.schema import param

GGML_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


@dataclass(frozen=True, kw_only=True)
class DraftingConfig:
    """How a worker drafts tokens ahead, and with which draft model."""

    hf_repo_draft: str = param(
        "",
        "Hugging Face repository to download the draft model from; `model_draft` may name a "
        "file in it.",
    )
    spec_type: tuple[str, ...] = param(
        (),
        "Methods of speculative decoding, separated by commas: none, draft-simple, "
        "ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod, ngram-cache. Empty: those whose "
        "files are given.",
    )
    spec_slots: int = param(
        2, "Use speculative decoding while at most N slots generate; 0: never.", low=0, high=256
    )
    model_draft: str = param(
        "", "GGUF file of the draft model for speculative decoding; empty: none."
    )
    n_draft: int = param(5, "Largest number of tokens drafted at once.", low=0, high=64)
    n_draft_min: int = param(0, "Drafts of fewer tokens are not used.", low=0, high=64)
    draft_p_min: float = param(
        0.0,
        "A draft ends before a token that the draft model gives a lower probability.",
        low=0,
        high=1,
    )
    n_ctx_draft: int = param(
        0, "Context of the draft model, in tokens; 0: as the model's.", low=0, high=INT32_MAX
    )
    n_gpu_layers_draft: int = param(
        -1,
        "Layers of the draft model on the GPU; -1, auto or all: every layer.",
        low=-1,
        high=10000,
    )
    n_threads_draft: int = param(
        0,
        "CPU threads of the draft model for generation; 0 or -1: as the model's.",
        low=-1,
        high=512,
    )
    n_threads_batch_draft: int = param(
        0,
        "CPU threads of the draft model for prompts; 0 or -1: as for its generation.",
        low=-1,
        high=512,
    )
    cache_type_k_draft: str = param(
        "f16", "Data type of the keys in the draft model's KV cache.", choices=GGML_TYPES
    )
    cache_type_v_draft: str = param(
        "f16", "Data type of the values in the draft model's KV cache.", choices=GGML_TYPES
    )
    device_draft: tuple[str, ...] = param(
        (), "llama.cpp devices of the draft model, separated by commas; empty: those of the model."
    )
    override_tensor_draft: tuple[str, ...] = param(
        (), "The same as --override-tensor for the draft model."
    )
    cpu_moe_draft: bool = param(
        False, "Keep the draft model's expert weights of all layers in the host's memory."
    )
    n_cpu_moe_draft: int = param(
        0,
        "Keep the draft model's expert weights of the first N layers in the host's memory.",
        low=0,
        high=10000,
    )
    cpus_draft: str = param(
        "", "CPUs of the draft model's threads, as in 0-3,8; empty: those of the worker."
    )
    cpus_batch_draft: str = param(
        "", "CPUs of the draft model's threads that read prompts; empty: as for its generation."
    )
    poll_draft: int = param(
        -1,
        "How long the draft model's threads spin, 0 to 100; -1: as the model's.",
        low=-1,
        high=100,
    )
    poll_batch_draft: int = param(
        -1,
        "The same for the draft model's threads that read prompts; -1: as for its generation.",
        low=-1,
        high=100,
    )
    prio_draft: int = param(
        0,
        "Scheduling priority of the draft model's threads: 0 normal to 3 realtime.",
        low=0,
        high=3,
    )
    prio_batch_draft: int = param(
        0,
        "Scheduling priority of the draft model's threads that read prompts: 0 normal to 3 "
        "realtime.",
        low=0,
        high=3,
    )
    cpu_strict_draft: bool | None = param(
        None, "Bind each thread of the draft model to one CPU; unset: as --cpu-strict."
    )
    cpu_strict_batch_draft: bool | None = param(
        None,
        "Bind each thread of the draft model that reads prompts to one CPU; unset: as for its "
        "generation.",
    )
    spec_ngram_size_n: int = param(
        12,
        "ngram-simple: number of last tokens that must occur earlier in the text.",
        low=1,
        high=1024,
    )
    spec_ngram_size_m: int = param(
        48, "ngram-simple: largest number of tokens drafted.", low=1, high=1024
    )
    spec_mod_match: int = param(
        24, "ngram-mod: number of last tokens that must match.", low=1, high=1024
    )
    spec_mod_min: int = param(
        48, "ngram-mod: drafts of fewer tokens are not used.", low=0, high=1024
    )
    spec_mod_max: int = param(64, "ngram-mod: largest number of tokens drafted.", low=0, high=1024)
    spec_map_size_n: int = param(
        12, "ngram-map-k: number of last tokens that are looked up.", low=1, high=1024
    )
    spec_map_size_m: int = param(
        48, "ngram-map-k: largest number of tokens drafted.", low=1, high=1024
    )
    spec_map_min_hits: int = param(
        1, "ngram-map-k: how often those tokens must have occurred.", low=1
    )
    spec_map4_size_n: int = param(
        12, "ngram-map-k4v: number of last tokens that are looked up.", low=1, high=1024
    )
    spec_map4_size_m: int = param(
        48, "ngram-map-k4v: largest number of tokens drafted.", low=1, high=1024
    )
    spec_map4_min_hits: int = param(
        1, "ngram-map-k4v: how often those tokens must have occurred.", low=1
    )
    lookup_cache_static: str = param(
        "", "N-gram cache file of llama.cpp that is read and never changed; empty: none."
    )
    lookup_cache_dynamic: str = param(
        "",
        "N-gram cache file of llama.cpp that is read, and updated when a worker ends; several "
        "workers may share it. Empty: none.",
    )
