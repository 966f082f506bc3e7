"""Whole models by one flag: llama.cpp's presets, and what stands above them."""

import pytest

from protocol.config.options.presets import PRESETS
from tests.worker.settings.test_arguments import given

FIM = {"worker.n_batch": 1024, "worker.n_ubatch": 1024, "gateway.port": 8012}


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        (
            "--embd-gemma-default",
            {
                "worker.hf_repo": "ggml-org/embeddinggemma-300M-qat-q4_0-GGUF",
                "worker.hf_file": "embeddinggemma-300M-qat-Q4_0.gguf",
                "worker.embeddings": True,
                "worker.n_slots": 32,
                "worker.n_ctx": 65536,
                "gateway.port": 8011,
            },
        ),
        (
            "--fim-qwen-1.5b-default",
            {
                "worker.hf_repo": "ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF",
                "worker.hf_file": "qwen2.5-coder-1.5b-q8_0.gguf",
                **FIM,
            },
        ),
        (
            "--fim-qwen-14b-spec",
            {
                "worker.hf_repo": "ggml-org/Qwen2.5-Coder-14B-Q8_0-GGUF",
                "worker.hf_repo_draft": "ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF",
                "worker.model_draft": "qwen2.5-coder-0.5b-q8_0.gguf",
                **FIM,
            },
        ),
        (
            "--gpt-oss-20b-default",
            {
                "worker.hf_file": "gpt-oss-20b-mxfp4.gguf",
                "worker.n_batch": 32768,
                "worker.n_ctx": 262144,
                "sampling.min_p": 0.01,
                "sampling.top_k": 0,
            },
        ),
        ("--vision-gemma-4b-default", {"worker.hf_repo": "ggml-org/gemma-3-4b-it-qat-GGUF"}),
        ("--spec-default", {"worker.spec_type": ("ngram-mod",), "worker.spec_mod_min": 48}),
    ],
)
def test_a_preset_sets_what_llama_cpp_sets(flag: str, expected: dict[str, object]) -> None:
    assert expected.items() <= given(flag).changes.items()


def test_what_is_said_besides_stands_above_a_preset() -> None:
    changes = given("-np", "1", "--gpt-oss-20b-default", "--port", "9", "--temp", "0").changes
    assert (changes["worker.n_slots"], changes["gateway.port"]) == (1, 9)
    assert changes["sampling.temperature"] == 0.0


def test_llama_server_has_twelve_of_them() -> None:
    assert len(PRESETS) == 12
