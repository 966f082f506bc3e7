"""What llama.cpp is told before it loads: metadata in the file's place, NUMA, RPC, tokens."""

from collections.abc import Sequence
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from tests.models.shallow import shallow_path
from worker.engine.backend import BatchRow
from worker.llama import startup
from worker.llama.backend import LlamaBackend
from worker.llama.model import context_params, load_mode


def loaded(**fields: object) -> LlamaBackend:
    config = WorkerConfig(model=shallow_path(), n_ctx=256, n_threads=1, warmup=False, **fields)  # type: ignore[arg-type]
    return LlamaBackend(config, lambda _fraction: None)


@pytest.mark.parametrize(
    "item",
    ["", "a", "a=1", "a=int", "a=int:x", "a=float:x", "a=bool:1", "a=who:1", "=int:1",
     "a" * 128 + "=int:1", "a=str:" + "x" * 129],
)  # fmt: skip
def test_an_override_that_llama_cpp_would_not_take_is_named(item: str) -> None:
    with pytest.raises(ConfigError, match="--override-kv"):
        startup.kv_overrides((item,))


def test_overrides_are_written_as_llama_cpp_reads_them() -> None:
    items = ("i=int:-5", "f=float:1.5", "b=bool:true", "s=str:a=b:c")
    array = startup.kv_overrides(items)
    assert [entry.key for entry in array] == [b"i", b"f", b"b", b"s", b""]
    assert [entry.tag for entry in array][:4] == [0, 1, 2, 3]
    assert array[0].value.val_i64 == -5
    assert array[1].value.val_f64 == 1.5
    assert array[2].value.val_bool is True
    assert array[3].value.val_str == b"a=b:c"


def test_rpc_servers_need_a_build_that_has_them() -> None:
    startup.add_rpc_servers(())
    with pytest.raises(
        ConfigError, match=r"no RPC backend; build it with CMAKE_ARGS=-DGGML_RPC=on"
    ):
        startup.add_rpc_servers(("127.0.0.1:1",))


def test_the_options_of_a_context_are_llama_cpps_parameters() -> None:
    config = WorkerConfig(
        n_threads=3,
        n_threads_batch=4,
        cache_type_k="q8_0",
        cache_type_v="f32",
        offload_kqv=False,
        flash_attn="on",
        rope_scaling="yarn",
        rope_freq_base=5.0,
        rope_freq_scale=0.5,
        yarn_orig_ctx=7,
        yarn_ext_factor=0.25,
        yarn_attn_factor=2.0,
        yarn_beta_slow=3.0,
        yarn_beta_fast=4.0,
    )
    params = context_params(config)
    assert (params.type_k, params.type_v, params.offload_kqv) == (8, 0, False)
    assert (params.flash_attn_type, params.rope_scaling_type) == (1, 2)
    assert (params.rope_freq_base, params.rope_freq_scale) == (5.0, 0.5)
    assert (params.yarn_orig_ctx, params.yarn_ext_factor, params.yarn_attn_factor) == (7, 0.25, 2)
    assert (params.yarn_beta_slow, params.yarn_beta_fast) == (3.0, 4.0)


@pytest.mark.model
def test_metadata_is_overridden_and_control_tokens_are_shown() -> None:
    backend = loaded(
        override_kv=("tokenizer.ggml.add_bos_token=bool:true",), special=True, numa="distribute"
    )
    try:
        assert backend.vocabulary.add_bos
        eos = backend.tokenize("<|im_end|>", add_special=False, parse_special=True)[0]
        assert backend.vocabulary.shown(eos, frozenset(), shows_end=True) == b"<|im_end|>"
        assert backend.vocabulary.shown(eos, frozenset({eos}), shows_end=False) == b""
    finally:
        backend.close()


@pytest.mark.model
def test_an_override_of_another_type_ends_the_start() -> None:
    with pytest.raises(ConfigError, match=r"--override-kv: .*bos_token"):
        loaded(override_kv=("tokenizer.ggml.add_bos_token=str:x",))


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, 1),
        ({"use_mmap": None}, 1),
        ({"use_mmap": True}, 1),
        ({"use_mmap": False}, 0),
        ({"use_mmap": False, "use_mlock": True}, 2),
        ({"use_mlock": True}, 3),
        ({"load_mode": "none"}, 0),
        ({"load_mode": "mmap+mlock"}, 3),
        ({"load_mode": "dio", "use_mlock": True}, 4),
        ({"load_mode": "auto"}, -1),
    ],
)
def test_the_way_of_loading_is_llama_cpps_number(fields: dict[str, Any], mode: int) -> None:
    assert load_mode(WorkerConfig(**fields)) == mode


@pytest.mark.model
def test_tensors_are_checked_and_locked_if_asked() -> None:
    loaded(check_tensors=True, use_mlock=True, use_mmap=False).close()


@pytest.mark.model
def test_a_model_is_read_around_the_page_cache_if_asked() -> None:
    loaded(load_mode="dio").close()


@pytest.mark.model
@pytest.mark.parametrize("warmup", [True, False])
def test_a_model_is_warmed_up_and_measured_unless_told_otherwise(warmup: bool) -> None:
    config = WorkerConfig(model=shallow_path(), n_ctx=256, n_threads=1, warmup=warmup)
    backend = LlamaBackend(config, lambda _fraction: None)
    try:
        assert (backend.prefill_token_s > 0) == warmup
    finally:
        backend.close()


@pytest.mark.model
def test_on_a_gpu_the_warm_up_takes_the_memory_of_the_largest_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found on a GPU: the first long prompt found no memory, because another program had it."""
    sizes = []
    decode = LlamaBackend.decode

    def counting(self: LlamaBackend, rows: Sequence[BatchRow]) -> None:
        sizes.append(sum(len(row.tokens) for row in rows))
        decode(self, rows)

    monkeypatch.setattr(LlamaBackend, "decode", counting)
    monkeypatch.setattr("worker.llama.model.uses_gpu", lambda _config: True)
    config = WorkerConfig(model=shallow_path(), n_ctx=256, n_threads=1, n_ubatch=128)
    LlamaBackend(config, lambda _fraction: None).close()
    assert sizes == [1, 128]
