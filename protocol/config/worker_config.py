"""One model on the devices that it is given: every key of a `[[worker]]` table, declared once."""

import json
from dataclasses import dataclass
from typing import Any

from protocol.wire.sampling import INT32_MAX, SamplingParams
from protocol.wire.schema import param

POOLINGS = ("none", "mean", "cls", "last", "rank")
GGML_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One model on the devices that it is given; `count` starts that many alike."""

    name: str = param("", "Name in logs, metrics and slots; empty is HOST/ALIAS and a number.")
    model: str = param("", "GGUF file; empty is the embedded default model.")
    alias: str = param(
        "", "Model names for clients, by commas, the first by the alphabet leading; or the file's."
    )
    aliases: tuple[str, ...] = param((), "More model names for clients.")
    tags: tuple[str, ...] = param((), "Labels in /v1/models.")
    model_url: str = param("", "Where to fetch the model, unless the file is there.")
    hf_repo: str = param("", "Hugging Face repository of the model, USER/MODEL[:QUANT].")
    hf_file: str = param("", "File in that repository.")
    hf_repo_draft: str = param(
        "", "Hugging Face repository of the draft model; `model_draft` may name a file in it."
    )
    mmproj_url: str = param("", "Where to fetch the projector, unless the file is there.")
    mmproj_auto: bool = param(True, "Fetch the projector that a Hugging Face repository holds.")
    hf_token: str = param("", "Token for that repository.")
    offline: bool = param(False, "Never use the network to fetch a model.")
    count: int = param(1, "Number of worker processes.", low=1, high=1024)
    connect: tuple[str, ...] = param((), "ZeroMQ endpoint of the gateway; none is the local one.")
    backend: str = param("llama", "The engine's lower half.", choices=("llama", "fake"))
    devices: str = param("", "CUDA_VISIBLE_DEVICES of the process; empty leaves it.")
    device_per_worker: bool = param(False, "Give the n-th of `count` only the n-th of `devices`.")
    n_ctx: int = param(0, "Context of all slots together; 0 is the model's.", low=0, high=INT32_MAX)
    n_ctx_per_slot: int = param(
        0,
        "Most context of one slot; without `n_ctx`, all slots share that many times `n_slots`.",
        low=0,
        high=INT32_MAX,
    )
    n_slots: int = param(
        1,
        "Slots: tasks that run at once; -1 is four that share the whole context.",
        "n_parallel",
        low=-1,
        high=255,
    )
    n_prefetch: int = param(1, "Tasks sent ahead of a free slot.", low=0, high=16)
    n_batch: int = param(2048, "Most tokens of one decode call.", low=1, high=65536)
    n_ubatch: int = param(512, "Most tokens of one physical batch.", low=1, high=65536)
    n_threads: int = param(0, "CPU threads; 0 is the cores at hand.", low=-1, high=512)
    n_threads_batch: int = param(0, "CPU threads for batches; 0 is `n_threads`.", low=-1, high=512)
    n_gpu_layers: int = param(-1, "Layers on the GPU; -1 is all.", low=-1, high=10000)
    split_mode: str = param(
        "layer", "How a model spreads over GPUs.", choices=("none", "layer", "row", "tensor")
    )
    main_gpu: int = param(0, "GPU of small tensors, or of all with split_mode none.", low=0)
    device: tuple[str, ...] = param(
        (), "llama.cpp's devices to use, as --list-devices names them; none is the CPU alone."
    )
    override_tensor: tuple[str, ...] = param(
        (), "Tensors that go elsewhere: PATTERN=BUFFER, a regular expression of their names."
    )
    cpu_moe: bool = param(False, "Keep the weights of all experts on the CPU.")
    n_cpu_moe: int = param(
        0, "Keep the experts of the first so many layers on the CPU.", low=0, high=10000
    )
    n_cpu_ffn: int = param(
        0, "Keep the dense weights of the first so many layers on the CPU.", low=0, high=10000
    )
    fit: bool = param(
        True, "Take a smaller context, then fewer layers, where memory is short and neither is set."
    )
    fit_target: tuple[int, ...] = param(
        (1024,), "MiB that are to stay free of each device; one number is for all."
    )
    fit_ctx: int = param(4096, "Smallest context that `fit` may take.", low=0, high=INT32_MAX)
    tensor_split: tuple[float, ...] = param((), "Share of each GPU.")
    use_mmap: bool | None = param(
        None, "Map the file instead of reading it; unset, a CPU worker alone with its model reads."
    )
    use_mlock: bool = param(False, "Keep the model in RAM.")
    load_mode: str = param(
        "",
        "How the file is read (dio: around the page cache); empty is by use_mmap and use_mlock.",
        choices=("", "auto", "none", "mmap", "mlock", "mmap+mlock", "dio"),
    )
    lazy_mode: str = param(
        "auto",
        "Read the rows of huge tables (embeddings of each layer) from the file as they are needed; "
        "auto: those beyond 4 GiB.",
        choices=("auto", "on", "off"),
    )
    no_host: bool = param(False, "Leave the host's pinned buffers aside, for repacked weights.")
    op_offload: bool = param(True, "Compute large batches of weights on the CPU with the GPU.")
    perf: bool = param(False, "Let llama.cpp measure, and log its figures when the model goes.")
    flash_attn: str = param("auto", "Flash attention.", choices=("auto", "on", "off"))
    cache_type_k: str = param("f16", "Type of cached keys.", choices=GGML_TYPES)
    cache_type_v: str = param("f16", "Type of cached values.", choices=GGML_TYPES)
    kv_unified: bool = param(False, "Let any slot use the whole context; what runs shares it.")
    cache_branches: int = param(32, "Prompts kept beside those of the slots.", low=0, high=255)
    cache_ram: int = param(
        8192, "MiB of RAM for prompts that leave the context; -1 is any.", low=-1
    )
    offload_kqv: bool = param(True, "Keep the KV cache on the GPU.")
    rope_scaling: str = param(
        "", "RoPE scaling; empty is the model's.", choices=("", "none", "linear", "yarn")
    )
    rope_freq_base: float = param(0.0, "RoPE base; 0 is the model's.", low=0)
    rope_freq_scale: float = param(0.0, "RoPE scale; 0 is the model's.", low=0)
    yarn_orig_ctx: int = param(0, "YaRN: context of training.", low=0)
    yarn_ext_factor: float = param(-1.0, "YaRN extrapolation mix; -1 is the model's.")
    yarn_attn_factor: float = param(-1.0, "YaRN attention factor; -1 is the model's.")
    yarn_beta_slow: float = param(-1.0, "YaRN low correction; -1 is the model's.")
    yarn_beta_fast: float = param(-1.0, "YaRN high correction; -1 is the model's.")
    check_tensors: bool = param(False, "Validate the tensors while loading.")
    repack: bool = param(
        True,
        "Let llama.cpp write weights anew in its kernels' order where it can (Q4_0 on most CPUs): "
        "faster, but each worker has a copy of its own.",
    )
    override_kv: tuple[str, ...] = param((), "Metadata in the file's place: KEY=TYPE:VALUE.")
    numa: str = param(
        "",
        "llama.cpp's placement on a NUMA machine; empty is chosen.",
        choices=("", "none", "distribute", "isolate", "numactl", "mirror"),
    )
    cpus: str = param("", "CPUs of the process, as in 0-3,8; all is any, empty is chosen.")
    poll: int = param(
        -1,
        "How long threads wait awake for each other: 0 never, 100 longest; -1 is chosen.",
        low=-1,
        high=100,
    )
    cpus_batch: str = param("", "CPUs of the threads for batches; empty is those of the process.")
    poll_batch: int = param(-1, "`poll` for batches; -1 is the same.", low=-1, high=100)
    prio: int = param(
        0, "Priority: -1 low, 0 normal, 1 medium, 2 high, 3 realtime.", low=-1, high=3
    )
    prio_batch: int = param(0, "Priority of the threads for batches.", low=0, high=3)
    cpu_strict: bool = param(False, "Bind each thread to one of the CPUs.")
    cpu_strict_batch: bool | None = param(None, "The same for batches; unset is `cpu_strict`.")
    rpc: tuple[str, ...] = param((), "HOST:PORT of llama.cpp's RPC servers.")
    special: bool = param(False, "Write control tokens into the text.")
    verbose_prompt: bool = param(False, "Log every prompt.")
    prompts_dir: str = param("", "Folder that gets each prompt as a file, for debugging.")
    warmup: bool = param(True, "Decode once before the slots open.")
    context_shift: bool = param(False, "Shift a full context instead of ending.")
    slot_similarity: float = param(
        0.1, "Share of a prompt that a slot must hold to be chosen for it.", low=0, high=1
    )
    step_target_ms: float = param(
        0.0,
        "Aim for a step while somebody decodes; CPUs take up to 5 times that where several prompts "
        "wait, or pace the streams' tokens meanwhile; 0 is 100 on CPU, 40 on GPU.",
        low=0,
    )
    grp_attn_n: int = param(
        1, "Self-extend: tokens that share a position; 1 is off.", low=1, high=1024
    )
    grp_attn_w: int = param(512, "Self-extend: width of a group in tokens.", low=1, high=INT32_MAX)
    spec_type: tuple[str, ...] = param(
        (),
        "Who guesses ahead: none, draft-simple, ngram-simple, ngram-map-k, ngram-map-k4v, "
        "ngram-mod, ngram-cache; empty is by files.",
    )
    spec_slots: int = param(
        2, "Guess ahead while at most this many slots decode; 0 is never.", low=0, high=255
    )
    model_draft: str = param("", "GGUF file of a small model that guesses ahead.")
    n_draft: int = param(5, "Most tokens guessed at once.", low=0, high=64)
    n_draft_min: int = param(0, "Guesses of fewer tokens are dropped.", low=0, high=64)
    draft_p_min: float = param(
        0.0, "A guess ends before a token less likely than this.", low=0, high=1
    )
    n_ctx_draft: int = param(0, "Context of the draft model; 0 is `n_ctx`.", low=0, high=INT32_MAX)
    n_gpu_layers_draft: int = param(
        -1, "Layers of the draft model on the GPU; -1 is all.", low=-1, high=10000
    )
    n_threads_draft: int = param(
        0, "CPU threads of the draft model; 0 is `n_threads`.", low=-1, high=512
    )
    n_threads_batch_draft: int = param(
        0, "The same for batches; 0 is `n_threads_draft`.", low=-1, high=512
    )
    cache_type_k_draft: str = param("f16", "The draft model's cached keys.", choices=GGML_TYPES)
    cache_type_v_draft: str = param("f16", "The draft model's cached values.", choices=GGML_TYPES)
    device_draft: tuple[str, ...] = param((), "Devices of the draft model; unset is `device`.")
    override_tensor_draft: tuple[str, ...] = param((), "`override_tensor` of the draft model.")
    cpu_moe_draft: bool = param(False, "`cpu_moe` of the draft model.")
    n_cpu_moe_draft: int = param(0, "`n_cpu_moe` of the draft model.", low=0, high=10000)
    cpus_draft: str = param("", "CPUs of the draft model's threads; empty is the process's.")
    cpus_batch_draft: str = param("", "The same for batches; empty is `cpus_draft`.")
    poll_draft: int = param(-1, "`poll` of the draft model; -1 is the same.", low=-1, high=100)
    poll_batch_draft: int = param(-1, "The same for batches.", low=-1, high=100)
    prio_draft: int = param(0, "Priority of the draft model's threads.", low=0, high=3)
    prio_batch_draft: int = param(0, "The same for batches.", low=0, high=3)
    cpu_strict_draft: bool | None = param(None, "Bind the draft model's threads to one CPU each.")
    cpu_strict_batch_draft: bool | None = param(None, "The same for batches.")
    spec_ngram_size_n: int = param(
        12, "ngram-simple: words that must have occurred before.", low=1, high=1024
    )
    spec_ngram_size_m: int = param(48, "ngram-simple: most tokens guessed.", low=1, high=1024)
    spec_mod_match: int = param(24, "ngram-mod: tokens that must match.", low=1, high=1024)
    spec_mod_min: int = param(
        48, "ngram-mod: guesses of fewer tokens are dropped.", low=0, high=1024
    )
    spec_mod_max: int = param(64, "ngram-mod: most tokens guessed.", low=0, high=1024)
    spec_map_size_n: int = param(12, "ngram-map-k: length of the key.", low=1, high=1024)
    spec_map_size_m: int = param(48, "ngram-map-k: most tokens guessed.", low=1, high=1024)
    spec_map_min_hits: int = param(1, "ngram-map-k: times that the key must have come.", low=1)
    spec_map4_size_n: int = param(12, "ngram-map-k4v: length of the key.", low=1, high=1024)
    spec_map4_size_m: int = param(48, "ngram-map-k4v: most tokens guessed.", low=1, high=1024)
    spec_map4_min_hits: int = param(1, "ngram-map-k4v: times that the key must have come.", low=1)
    lookup_cache_static: str = param("", "llama.cpp n-gram cache that is only read.")
    lookup_cache_dynamic: str = param(
        "", "llama.cpp n-gram cache that learns; workers may share one, each adds to it at its end."
    )
    mmproj: str = param("", "Projector for images and sounds (GGUF); empty is text only.")
    mmproj_offload: bool = param(True, "Run the projector on the GPU.")
    mmproj_device: str = param(
        "", "Device of the projector, none for the CPU; empty is the first of `device`."
    )
    image_min_tokens: int = param(
        -1, "Fewest tokens of an image, for models that take any size; -1 is the model's.", low=-1
    )
    image_max_tokens: int = param(
        -1, "Most tokens of an image, for models that take any size; -1 is the model's.", low=-1
    )
    mtmd_batch_max_tokens: int = param(
        1024, "Image tokens that the projector encodes at once.", low=1, high=INT32_MAX
    )
    slot_save_path: str = param("", "Folder of saved slots; empty turns their saving off.")
    slot_quota_mib: int = param(
        16384,
        "Most MiB of saved slots of one API key, where keys are kept apart; 0 is no limit.",
        low=0,
        high=INT32_MAX,
    )
    lora: tuple[str, ...] = param((), "LoRA adapters: FNAME, or FNAME:SCALE.")
    lora_init_without_apply: bool = param(
        False, "Load the adapters with scale 0, for POST /lora-adapters to raise."
    )
    lora_base: str = param("", "Accepted, and warned about: llama.cpp has no such thing any more.")
    control_vector: tuple[str, ...] = param((), "Control vectors: FNAME, or FNAME:SCALE.")
    control_vector_layers: tuple[int, ...] = param(
        (), "First and last layer that they apply to; none is all."
    )
    system_prompt_file: str = param(
        "", "What every prompt begins with: JSON as the field system_prompt, or text."
    )
    json_schema: str = param("", "JSON schema that every text must match, as a default grammar.")
    chat_template: str = param("", "Jinja text, or a built-in name; empty is the model's.")
    jinja: bool = param(
        True, "Run the template; off takes llama.cpp's built-in form of it: no tools, no thoughts."
    )
    template_kwargs: str = param("", "More variables of the template, a JSON object.")
    reasoning: str = param(
        "auto", "Let the model think; auto is as the template does.", choices=("auto", "on", "off")
    )
    reasoning_effort: str = param(
        "", "How hard the model is to think, as the template calls it; empty is its default."
    )
    reasoning_preserve: bool = param(True, "Keep the thoughts of all earlier answers in a chat.")
    skip_chat_parsing: bool = param(
        False, "Give out what the model writes as it is: no thoughts, no calls of tools."
    )
    reasoning_format: str = param(
        "deepseek",
        "What becomes of thoughts in chats that do not say: none leaves them in the text.",
        choices=("none", "auto", "deepseek", "deepseek-legacy"),
    )
    prefill_assistant: bool = param(True, "Go on with an assistant's message at a chat's end.")
    chat_prompt: str | None = param(None, "api_like_OAI.py's prompt; one of these five chooses it.")
    user_name: str | None = param(None, "What it writes before a user's message.")
    ai_name: str | None = param(None, "What it writes before the model's message.")
    system_name: str | None = param(None, "What it writes before a system message.")
    chat_stop: str | None = param(None, "What it writes after the model's; stops every chat.")
    embeddings: bool = param(False, "Serve embeddings, beside generation where the model can.")
    reranking: bool = param(False, "Serve reranking; sets embeddings, and pooling to rank.")
    pooling: str = param(
        "",
        "Pooling of embeddings; empty is the model's, and mean where it has none.",
        choices=("", *POOLINGS),
    )
    attention_type: str = param(
        "",
        "Attention of embeddings; empty is the model's.",
        choices=("", "causal", "non-causal"),
    )
    embd_normalize: int = param(
        2,
        "Norm of embeddings: -1 none, 0 largest value in int16, 1 taxicab, 2 Euclidean, p p-norm.",
        low=-1,
        high=INT32_MAX,
    )
    spm_infill: bool = param(False, "Infill with the suffix before the prefix.")
    sampling: SamplingParams = param(
        SamplingParams(), "What a request takes that leaves a field out."
    )
    sleep_idle_s: float = param(
        -1.0, "Seconds without a task after which the model is freed; -1 is never.", low=-1
    )
    stall_s: float = param(10.0, "Shortest silence of a busy engine that means stuck.", low=0.1)
    fake_step_ms: float = param(0.0, "Fake backend: duration of a step.", low=0)
    fake_load_ms: float = param(0.0, "Fake backend: duration of loading.", low=0)

    @property
    def chat_variables(self) -> dict[str, Any]:
        """Return the variables of the template that every chat begins with; raises ValueError."""
        found: dict[str, Any] = {"preserve_reasoning": self.reasoning_preserve}
        if self.template_kwargs:
            found |= json.loads(self.template_kwargs)
        if self.reasoning != "auto":
            found["enable_thinking"] = self.reasoning == "on"
        if self.reasoning_effort:
            found["reasoning_effort"] = self.reasoning_effort
        return found
