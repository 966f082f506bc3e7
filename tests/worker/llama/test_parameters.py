"""From flags to what llama.cpp is told: the model, its contexts, the draft model, the projector.

llama.cpp itself is not called; what its functions would have got is looked at.
"""

from types import SimpleNamespace
from typing import Any

import llama_cpp.llama_cpp as lib
import llama_cpp.mtmd_cpp as mtmd
import pytest

from protocol.config.config import PoolConfig, WorkerConfig
from protocol.config.options import table as options
from protocol.errors import ConfigError
from tests.worker.settings.test_arguments import given
from worker.files.context_size import slot_context
from worker.llama import draft, startup
from worker.llama.adapters import load_adapters
from worker.llama.embedding import context as embedding
from worker.llama.media.reader import MediaReader
from worker.llama.model import _load_model, _make_context

N_TRAIN = 8192


def worker_of(*args: str) -> WorkerConfig:
    """What a worker is configured to be by a command line."""
    return options.apply(PoolConfig(worker=(WorkerConfig(),)), given(*args).changes).worker[0]


def model_params(config: WorkerConfig, monkeypatch: pytest.MonkeyPatch) -> Any:
    seen: list[Any] = []

    def load(path: bytes, params: Any) -> None:
        seen.append(SimpleNamespace(path=path, params=params))

    monkeypatch.setattr(lib, "llama_model_load_from_file", load)
    _load_model(config, lambda _fraction: None)
    return seen[0]


def main_context_params(config: WorkerConfig, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(lib, "llama_init_from_model", lambda _model, params: params)
    for name in ("recurrent", "hybrid"):
        monkeypatch.setattr(lib, f"llama_model_is_{name}", lambda _model: False)
    monkeypatch.setattr(lib, "llama_model_n_swa", lambda _model: 0)
    monkeypatch.setattr("worker.llama.model.architecture", lambda _model: "llama")
    return _make_context(None, config, slot_context(config, N_TRAIN))


@pytest.mark.parametrize(
    ("args", "name", "value"),
    [
        (["-ngl", "5"], "n_gpu_layers", 5),
        (["-ngl", "all"], "n_gpu_layers", -1),
        (["-sm", "row"], "split_mode", 2),
        (["-mg", "3"], "main_gpu", 3),
        (["--check-tensors"], "check_tensors", True),
        (["--no-repack"], "use_extra_bufts", False),
        (["--no-mmap"], "load_mode", 0),
        (["--mlock"], "load_mode", 3),
        (["-lm", "dio"], "load_mode", 4),
        (["-dio"], "load_mode", 4),
    ],
    ids=str,
)
def test_options_of_a_model_reach_llama_cpp(
    args: list[str], name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    normal = getattr(model_params(worker_of(), monkeypatch).params, name)
    told = getattr(model_params(worker_of(*args), monkeypatch).params, name)
    assert told == value
    assert told != normal or args == ["-ngl", "all"]


def test_shares_of_devices_and_the_file_reach_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    told = model_params(worker_of("-m", "a.gguf", "-ts", "3,1"), monkeypatch)
    assert told.path == b"a.gguf"
    assert list(told.params.tensor_split[:2]) == [3.0, 1.0]


@pytest.mark.parametrize(
    ("args", "name", "value"),
    [
        (["-c", "1024"], "n_ctx", 1024),
        (["-np", "4", "-c", "100", "--no-kv-unified"], "n_ctx", 4 * 256),
        (["-np", "3", "-kvu", "--cache-branches", "0"], "n_seq_max", 3 + 1),
        (["-np", "3"], "n_seq_max", 3),
        (["-np", "3", "-kvu"], "kv_unified", True),
        (["-b", "300"], "n_batch", 300),
        (["-b", "-1", "-c", "8192"], "n_batch", 8192),
        (["-b", "2147483647", "-c", "1024"], "n_batch", 1024),
        (["-ub", "0"], "n_ubatch", 2048),
        (["-ub", "-1", "-b", "700"], "n_ubatch", 700),
        (["-ub", "64"], "n_ubatch", 64),
        (["-t", "3"], "n_threads", 3),
        (["-t", "3"], "n_threads_batch", 3),
        (["-tb", "7"], "n_threads_batch", 7),
        (["-ctk", "q8_0"], "type_k", 8),
        (["-ctv", "q4_0"], "type_v", 2),
        (["--memory-f32"], "type_k", 0),
        (["--memory-f32"], "type_v", 0),
        (["-nkvo"], "offload_kqv", False),
        (["-fa", "on"], "flash_attn_type", 1),
        (["--swa-full"], "swa_full", True),
        (["--rope-scaling", "linear"], "rope_scaling_type", 1),
        (["--rope-scale", "4"], "rope_freq_scale", 0.25),
        (["--rope-freq-scale", "0.5"], "rope_freq_scale", 0.5),
        (["--rope-freq-base", "5000"], "rope_freq_base", 5000.0),
        (["--yarn-orig-ctx", "7"], "yarn_orig_ctx", 7),
        (["--yarn-ext-factor", "0.25"], "yarn_ext_factor", 0.25),
        (["--yarn-attn-factor", "2"], "yarn_attn_factor", 2.0),
        (["--yarn-beta-slow", "3"], "yarn_beta_slow", 3.0),
        (["--yarn-beta-fast", "4"], "yarn_beta_fast", 4.0),
    ],
    ids=str,
)
def test_options_of_a_context_reach_llama_cpp(
    args: list[str], name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = getattr(main_context_params(worker_of(*args), monkeypatch), name)
    assert told == value != getattr(main_context_params(worker_of(), monkeypatch), name)


def test_slots_share_the_context_unless_each_may_use_the_whole() -> None:
    args = ("-c", "4096", "-np", "4")
    assert slot_context(worker_of(*args, "--no-kv-unified"), N_TRAIN) == 1024
    assert slot_context(worker_of(*args, "--kv-unified"), N_TRAIN) == 4096


@pytest.mark.parametrize(
    ("args", "name", "value"),
    [
        (["-td", "3"], "n_threads", 3),
        (["-td", "3"], "n_threads_batch", 3),
        (["-tbd", "5"], "n_threads_batch", 5),
        (["-cd", "256"], "n_ctx", 256),
        (["-ctkd", "q8_0"], "type_k", 8),
        (["-ctvd", "f32"], "type_v", 0),
    ],
    ids=str,
)
def test_the_draft_models_context_has_options_of_its_own(
    args: list[str], name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ("-md", "d.gguf", "-c", "1024", "-t", "2", "-tb", "4", "-ctk", "q5_0", "-ctv", "q5_0")
    config = worker_of(*base, *args)
    own = draft._of_draft(config, 1024)
    assert getattr(main_context_params(own, monkeypatch), name) == value
    assert getattr(main_context_params(config, monkeypatch), name) != value


def test_the_draft_model_has_a_file_and_layers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    config = worker_of("-m", "m.gguf", "-ngl", "3", "-md", "d.gguf", "-ngld", "7")
    told = model_params(draft._of_draft(config, 512), monkeypatch)
    assert (told.path, told.params.n_gpu_layers) == (b"d.gguf", 7)


@pytest.mark.parametrize(
    ("args", "name", "value"),
    [
        (["--attention", "causal"], "attention_type", 0),
        (["--attention", "non-causal"], "attention_type", 1),
        (["--pooling", "last"], "pooling_type", 3),
        (["--reranking"], "pooling_type", 4),
        (["-ub", "96"], "n_batch", 96),
        (["-ub", "0", "-b", "128"], "n_batch", 128),
        (["-ub", "-1", "-b", "-1"], "n_ctx", 500),
    ],
    ids=str,
)
def test_options_of_embeddings_reach_llama_cpp(
    args: list[str], name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "metadata", lambda _model, _key: "")
    monkeypatch.setattr(embedding, "architecture", lambda _model: "llama")
    loaded: Any = SimpleNamespace(model=None)
    params = embedding._params(loaded, worker_of("--embeddings", *args), 500)
    assert getattr(params, name) == value
    assert getattr(embedding._params(loaded, worker_of("--embeddings"), 500), name) != value


@pytest.mark.parametrize(
    ("args", "scales"),
    [
        (["--lora", "a"], [1.0]),
        (["--lora-scaled", "a", "0.5", "--lora-scaled", "b:2"], [0.5, 2.0]),
        (["--lora-scaled", "a", "0.5", "--lora-init-without-apply"], [0.0]),
    ],
    ids=str,
)
def test_adapters_begin_with_the_scales_of_the_command_line(
    args: list[str], scales: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lib, "llama_adapter_lora_init", lambda _model, path: path)
    monkeypatch.setattr(lib, "llama_adapter_get_alora_n_invocation_tokens", lambda _handle: 0)
    monkeypatch.setattr(lib, "llama_adapter_meta_val_str", lambda *_: 0)
    loaded = load_adapters(None, worker_of(*args))
    assert [one.about.scale for one in loaded] == scales
    assert [one.handle for one in loaded] == [b"a", b"b"][: len(scales)]


@pytest.mark.parametrize(
    ("args", "told"), [([], []), (["--numa"], [1]), (["--numa", "isolate"], [2])], ids=str
)
def test_numa_is_llama_cpps_to_lay_out(
    args: list[str], told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(lib, "llama_numa_init", seen.append)
    startup.place(worker_of(*args).numa)
    assert seen == told


@pytest.mark.parametrize(
    ("args", "is_offloaded"), [([], True), (["--no-mmproj-offload"], False)], ids=str
)
def test_a_projector_may_stay_off_the_gpu(
    args: list[str], is_offloaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        mtmd, "mtmd_init_from_file", lambda path, _model, params: seen.append((path, params))
    )
    with pytest.raises(ConfigError, match=r"projector p\.gguf"):
        MediaReader(worker_of("--mmproj", "p.gguf", "--no-warmup", *args), None, 1)
    ((path, params),) = seen
    assert path == b"p.gguf"
    assert (params.use_gpu, params.warmup) == (is_offloaded, False)
