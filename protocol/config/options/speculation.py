"""The options of speculative decoding and of self-extend."""

from typing import Any

from protocol.config.options.argument_readers import (
    read_cpu_range,
    read_layers,
    read_poll,
    read_strict,
)
from protocol.config.options.option import Option, Unused, option, unused
from protocol.cpulist import parse_mask

_MASK = "CPUs of the draft model's threads, as a hexadecimal mask."


def _threads(of: str) -> tuple[Option, ...]:
    """Make the rows of the draft model's threads, for single tokens or for batches."""
    short, field = ("b", "_batch") if of else ("", "")

    def row(name: str, names: str, **extra: Any) -> Option:
        flags = f"{names} --{name}{of}-draft --spec-draft-{name}{of}"
        key = name.replace("-range", "s").replace("-mask", "s").replace("-", "_")
        return option(f"worker.{key}{field}_draft", flags, **extra)

    return (
        row("cpu-range", f"-Cr{short}d", parse=read_cpu_range),
        row("cpu-mask", f"-C{short}d", parse=parse_mask, doc=_MASK),
        row("cpu-strict", "", parse=read_strict, bare="1"),
        row("prio", ""),
        row("poll", "", parse=read_poll),
    )


SPECULATION_OPTIONS: tuple[Option, ...] = (
    option("worker.spec_type", "--spec-type"),
    option("worker.spec_slots", "--spec-slots"),
    option("worker.model_draft", "-md --model-draft --spec-draft-model", env="SPEC_DRAFT_MODEL"),
    option(
        "worker.hf_repo_draft",
        "-hfd -hfrd --hf-repo-draft --spec-draft-hf",
        env="SPEC_DRAFT_HF_REPO",
    ),
    option("worker.device_draft", "-devd --device-draft --spec-draft-device"),
    option(
        "worker.override_tensor_draft",
        "-otd --override-tensor-draft --spec-draft-override-tensor",
    ),
    option(
        "worker.cpu_moe_draft",
        "-cmoed --cpu-moe-draft --spec-draft-cpu-moe",
        env="SPEC_DRAFT_CPU_MOE",
    ),
    option(
        "worker.n_cpu_moe_draft",
        "-ncmoed --n-cpu-moe-draft --spec-draft-ncmoe --spec-draft-n-cpu-moe",
        env="SPEC_DRAFT_N_CPU_MOE",
    ),
    *_threads(""),
    *_threads("-batch"),
    option(
        "worker.n_draft",
        "--spec-draft-n-max",
        env="SPEC_DRAFT_N_MAX",
    ),
    option("worker.n_draft", "--draft --draft-n --draft-max", env="DRAFT_MAX"),
    option(
        "worker.n_draft_min",
        "--spec-draft-n-min",
        env="SPEC_DRAFT_N_MIN",
    ),
    option("worker.n_draft_min", "--draft-min --draft-n-min", env="DRAFT_MIN"),
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
    *(
        option(f"worker.spec_{ours}", f"--spec-ngram-{theirs}")
        for ours, theirs in (
            ("mod_match", "mod-n-match"),
            ("mod_min", "mod-n-min"),
            ("mod_max", "mod-n-max"),
            ("map_size_n", "map-k-size-n"),
            ("map_size_m", "map-k-size-m"),
            ("map_min_hits", "map-k-min-hits"),
            ("map4_size_n", "map-k4v-size-n"),
            ("map4_size_m", "map-k4v-size-m"),
            ("map4_min_hits", "map-k4v-min-hits"),
        )
    ),
    option("worker.lookup_cache_static", "-lcs --lookup-cache-static"),
    option("worker.lookup_cache_dynamic", "-lcd --lookup-cache-dynamic"),
    option("worker.grp_attn_n", "-gan --grp-attn-n", env="GRP_ATTN_N"),
    option("worker.grp_attn_w", "-gaw --grp-attn-w", env="GRP_ATTN_W"),
)

SPECULATION_UNUSED: tuple[Unused, ...] = (
    unused(
        "-ps --p-split --draft-p-split --spec-draft-p-split",
        "needs several drafts of one text; there is one, the likeliest",
        1,
        env="SPEC_DRAFT_P_SPLIT",
    ),
    unused("--spec-draft-backend-sampling", "is not there; it changes no answer", harmless=("*",)),
    unused(
        "--no-spec-draft-backend-sampling",
        "is the normal state",
        env="NO_SPEC_DRAFT_BACKEND_SAMPLING",
        harmless=("*",),
    ),
    unused("--spec-ngram-simple-min-hits --spec-ngram-min-hits", "is always 1", 1, harmless=("1",)),
    unused("--spec-synth-len", "is for measurements of llama-server", 1),
    unused("--spec-synth-rates", "is for measurements of llama-server", 1),
)
"""Options of speculative decoding that set nothing here."""
