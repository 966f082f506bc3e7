"""Whole models by one flag: where they are fetched from, and the options that suit them.

The values are those of llama.cpp's `common/arg.cpp`.
"""

from collections.abc import Mapping
from typing import Any

from protocol.config.options.option import Option, option

_FIM: Mapping[str, Any] = {
    "gateway.port": 8012,
    "worker.n_ubatch": 1024,
    "worker.n_batch": 1024,
    "worker.n_ctx": 0,
}
_GPT_OSS: Mapping[str, Any] = {
    "gateway.port": 8013,
    "worker.n_ubatch": 2048,
    "worker.n_batch": 32768,
    "worker.n_slots": 2,
    "worker.n_ctx": 2 * 131072,
    "worker.jinja": True,
    "sampling.temperature": 1.0,
    "sampling.top_p": 1.0,
    "sampling.top_k": 0,
    "sampling.min_p": 0.01,
}
_VISION: Mapping[str, Any] = {"gateway.port": 8014, "worker.n_ctx": 0, "worker.jinja": True}
_EMBEDDING: Mapping[str, Any] = {
    "gateway.port": 8011,
    "worker.n_ubatch": 2048,
    "worker.n_batch": 2048,
    "worker.n_slots": 32,
    "worker.n_ctx": 32 * 2048,
    "worker.verbose_prompt": True,
    "worker.embeddings": True,
}
_DRAFT: Mapping[str, Any] = {
    "worker.hf_repo_draft": "ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF",
    "worker.model_draft": "qwen2.5-coder-0.5b-q8_0.gguf",
}
_FETCHED = "the model is downloaded if it is not on this host."


def _preset(flag: str, what: str, repo: str, file: str, *more: Mapping[str, Any]) -> Option:
    """Make the row of a preset; without a file the repository's usual one is taken."""
    fields: dict[str, Any] = {"worker.hf_file": file} if file else {}
    for addition in more:
        fields |= addition
    doc = f"Serve {what} with the options that suit it; {_FETCHED}"
    return option(
        "worker.hf_repo", flag, value=f"ggml-org/{repo}", sets=tuple(fields.items()), doc=doc
    )


def _fim(size: str, *sets: Mapping[str, Any], kind: str = "default") -> Option:
    large, small = f"Qwen2.5-Coder-{size.upper()}-Q8_0-GGUF", f"qwen2.5-coder-{size}-q8_0.gguf"
    what = f"Qwen 2.5 Coder {size.upper()}" + (" and a draft model of 0.5B" if sets else "")
    return _preset(f"--fim-qwen-{size}-{kind}", what, large, small, _FIM, *sets)


PRESETS: tuple[Option, ...] = (
    _preset(
        "--embd-gemma-default",
        "EmbeddingGemma",
        "embeddinggemma-300M-qat-q4_0-GGUF",
        "embeddinggemma-300M-qat-Q4_0.gguf",
        _EMBEDDING,
    ),
    _fim("1.5b"),
    _fim("3b"),
    _fim("7b"),
    _fim("7b", _DRAFT, kind="spec"),
    _fim("14b", _DRAFT, kind="spec"),
    _preset(
        "--fim-qwen-30b-default",
        "Qwen 3 Coder 30B A3B",
        "Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF",
        "qwen3-coder-30b-a3b-instruct-q8_0.gguf",
        _FIM,
    ),
    _preset(
        "--gpt-oss-20b-default",
        "gpt-oss 20B",
        "gpt-oss-20b-GGUF",
        "gpt-oss-20b-mxfp4.gguf",
        _GPT_OSS,
    ),
    _preset("--gpt-oss-120b-default", "gpt-oss 120B", "gpt-oss-120b-GGUF", "", _GPT_OSS),
    _preset("--vision-gemma-4b-default", "Gemma 3 4B", "gemma-3-4b-it-qat-GGUF", "", _VISION),
    _preset("--vision-gemma-12b-default", "Gemma 3 12B", "gemma-3-12b-it-qat-GGUF", "", _VISION),
    option(
        "worker.spec_type",
        "--spec-default",
        value=("ngram-mod",),
        sets=(
            ("worker.spec_mod_match", 24),
            ("worker.spec_mod_min", 48),
            ("worker.spec_mod_max", 64),
        ),
        doc="Use speculative decoding with llama.cpp's default method, ngram-mod.",
    ),
)
