"""The options of guessing ahead (speculative decoding) and of self-extend."""

from protocol.options.option import Option, Unused, option, read_layers, unused

SPECULATION_OPTIONS: tuple[Option, ...] = (
    option("worker.spec_type", "--spec-type"),
    option("worker.spec_slots", "--spec-slots"),
    option("worker.model_draft", "-md --model-draft --spec-draft-model", env="SPEC_DRAFT_MODEL"),
    option(
        "worker.n_draft",
        "--draft --draft-n --draft-max --spec-draft-n-max",
        env="SPEC_DRAFT_N_MAX",
    ),
    option(
        "worker.n_draft_min",
        "--draft-min --draft-n-min --spec-draft-n-min",
        env="SPEC_DRAFT_N_MIN",
    ),
    option("worker.draft_p_min", "--draft-p-min --spec-draft-p-min", env="SPEC_DRAFT_P_MIN"),
    option("worker.n_ctx_draft", "-cd --ctx-size-draft", env="CTX_SIZE_DRAFT"),
    option(
        "worker.n_gpu_layers_draft",
        "-ngld --n-gpu-layers-draft --gpu-layers-draft --spec-draft-ngl",
        env="N_GPU_LAYERS_DRAFT",
        parse=read_layers,
    ),
    option("worker.n_threads_draft", "-td --threads-draft --spec-draft-threads"),
    option(
        "worker.n_threads_batch_draft",
        "-tbd --threads-batch-draft --spec-draft-threads-batch",
    ),
    option(
        "worker.cache_type_k_draft",
        "-ctkd --cache-type-k-draft --spec-draft-type-k",
        env="SPEC_DRAFT_CACHE_TYPE_K",
    ),
    option(
        "worker.cache_type_v_draft",
        "-ctvd --cache-type-v-draft --spec-draft-type-v",
        env="SPEC_DRAFT_CACHE_TYPE_V",
    ),
    option("worker.spec_ngram_size_n", "--spec-ngram-simple-size-n --spec-ngram-size-n"),
    option("worker.spec_ngram_size_m", "--spec-ngram-simple-size-m --spec-ngram-size-m"),
    option("worker.lookup_cache_static", "-lcs --lookup-cache-static"),
    option("worker.lookup_cache_dynamic", "-lcd --lookup-cache-dynamic"),
    option("worker.grp_attn_n", "-gan --grp-attn-n", env="GRP_ATTN_N"),
    option("worker.grp_attn_w", "-gaw --grp-attn-w", env="GRP_ATTN_W"),
)

_SPEED = "is left to llama.cpp; it changes no answer"
_PLACE = "is not there: the draft model goes where -ngld puts it"
_KIND = "belongs to a kind of guessing that is not there; see --spec-type"

SPECULATION_UNUSED: tuple[Unused, ...] = (
    unused("-ps --p-split --draft-p-split --spec-draft-p-split", "never was in llama-server", 1),
    unused("-Cd --cpu-mask-draft --spec-draft-cpu-mask", _SPEED, 1),
    unused("-Crd --cpu-range-draft --spec-draft-cpu-range", _SPEED, 1),
    unused("--cpu-strict-draft --spec-draft-cpu-strict", _SPEED, 1),
    unused("--prio-draft --spec-draft-prio", _SPEED, 1),
    unused("--poll-draft --spec-draft-poll", _SPEED, 1),
    unused("-Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch", _SPEED, 1),
    unused("-Crbd --cpu-range-batch-draft --spec-draft-cpu-range-batch", _SPEED, 1),
    unused("--cpu-strict-batch-draft --spec-draft-cpu-strict-batch", _SPEED, 1),
    unused("--prio-batch-draft --spec-draft-prio-batch", _SPEED, 1),
    unused("--poll-batch-draft --spec-draft-poll-batch", _SPEED, 1),
    unused("--spec-draft-backend-sampling", "is not there; it changes no answer"),
    unused("--no-spec-draft-backend-sampling", "is the normal state", harmless=("*",)),
    unused("--spec-ngram-simple-min-hits --spec-ngram-min-hits", "is always 1", 1, harmless=("1",)),
    *(
        unused(f"--spec-ngram-{name}", _KIND, 1)
        for name in (
            *("mod-n-min", "mod-n-max", "mod-n-match"),
            *("map-k-size-n", "map-k-size-m", "map-k-min-hits"),
            *("map-k4v-size-n", "map-k4v-size-m", "map-k4v-min-hits"),
        )
    ),
    unused("--spec-synth-len", "is for measurements of llama-server", 1),
    unused("--spec-synth-rates", "is for measurements of llama-server", 1),
    *(
        unused(flags, why, n_values, is_refused=True)
        for flags, why, n_values in (
            ("-hfd -hfrd --hf-repo-draft --spec-draft-hf", "is not there: name a file by -md", 1),
            ("-devd --device-draft --spec-draft-device", _PLACE, 1),
            ("-otd --override-tensor-draft --spec-draft-override-tensor", _PLACE, 1),
            ("-cmoed --cpu-moe-draft --spec-draft-cpu-moe", _PLACE, 0),
            ("-ncmoed --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe", _PLACE, 1),
            ("--spec-default", "is not there: say --spec-type ngram-simple", 0),
        )
    ),
)
"""Options of the draft model that set nothing here, or cannot be granted."""
