"""Where tensors and threads go: what the options of devices, buffers and memory come to."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from tests.cores import threads
from tests.models.llama import write_llama
from worker.engine.backend import BatchRow

pytestmark = pytest.mark.model


@pytest.fixture(autouse=True)
def affinity() -> Iterator[None]:
    """Give this thread its CPUs back: llama.cpp binds whoever computes."""
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_llama(tmp_path_factory.mktemp("model") / "random.gguf"))


@pytest.fixture
def config(model: str) -> WorkerConfig:
    return WorkerConfig(model=model, n_ctx=256, n_threads=threads(), n_batch=64, n_ubatch=64)


def opened(config: WorkerConfig) -> Any:
    from worker.llama.backend import LlamaBackend

    return LlamaBackend(config, lambda _fraction: None)


def likeliest(config: WorkerConfig) -> list[int]:
    """Return eight greedy tokens."""
    backend = opened(config)
    params = replace(config.sampling, temperature=0.0)
    tokens = backend.tokenize("ab", add_special=True, parse_special=False)
    sampler, position, found = backend.open_sampler(params, tokens), 0, []
    for _ in range(8):
        backend.decode([BatchRow(0, position, tokens, True)])
        position += len(tokens)
        tokens = [backend.sample(0, sampler).token]
        found += tokens
    sampler.close()
    backend.close()
    return found


MOVED: dict[str, dict[str, Any]] = {
    "no device": {"device": ("none",)},
    "experts": {"cpu_moe": True, "n_cpu_moe": 1, "n_cpu_ffn": 1},
    "a pattern": {"override_tensor": (r"blk\.0\.ffn_.*=CPU",)},
    "threads": {
        "n_threads": 2,
        "n_threads_batch": 2,
        "cpu_strict": True,
        "cpus_batch": "0",
        "prio_batch": 0,
        "poll_batch": 0,
    },
    "the rest": {"no_host": True, "op_offload": False, "lazy_mode": "on", "perf": True},
    "one token a batch": {"n_batch": 1, "n_ubatch": 1, "n_slots": 1},
}


@pytest.mark.parametrize("fields", MOVED.values(), ids=MOVED)
def test_where_things_lie_changes_no_text(config: WorkerConfig, fields: dict[str, Any]) -> None:
    assert likeliest(replace(config, **fields)) == likeliest(config)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"device": ("X9",)}, "--device X9: no such device; there are "),
        ({"override_tensor": ("a",)}, "--override-tensor a: must be PATTERN=BUFFER"),
        ({"override_tensor": ("(=CPU",)}, "no regular expression"),
        ({"override_tensor": ("a=Moon",)}, "no buffer type Moon here; there is: .*CPU"),
        ({"cpus_batch": "x"}, "cpus 'x': must be a list"),
    ],
)
def test_a_place_that_is_not_there_ends_the_start(
    config: WorkerConfig, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(replace(config, **fields))


def test_a_priority_below_the_normal_one_is_taken_by_the_thread(config: WorkerConfig) -> None:
    from worker.llama.hardware.threads import prioritize

    found: list[int] = []

    def low() -> None:
        prioritize(-1)
        found.append(os.getpriority(os.PRIO_PROCESS, 0))

    thread = threading.Thread(target=low)
    thread.start()
    thread.join()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert found == [5 if os.geteuid() == 0 else max(5, own)]  # only root may have a higher one


def test_a_slots_context_has_a_bound_of_its_own(config: WorkerConfig) -> None:
    shared = replace(config, n_ctx=1024, n_slots=2, kv_unified=True)
    backend = opened(replace(shared, n_ctx_per_slot=300))
    assert (backend.card.n_ctx, backend.card.n_ctx_total) == (300, 1024)
    backend.close()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"grammar": "nonsense"}, "the options of generation: .*rammar"),
        ({"logit_bias": ((999999, 1.0),)}, "the options of generation: .*999999"),
    ],
)
def test_generation_that_cannot_begin_ends_the_start(
    config: WorkerConfig, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(replace(config, sampling=replace(config.sampling, **fields)))


def test_the_devices_are_told_as_llama_server_tells_them() -> None:
    from worker.llama.hardware.devices import all_devices, report

    assert report().startswith("Available devices:\n  ")
    assert [one.name for one in all_devices() if one.kind == 0] == ["CPU"]


def test_llama_cpps_figures_are_logged_if_that_was_asked(
    config: WorkerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="worker.llama.model")
    opened(config).close()
    assert "load_s" not in caplog.text
    opened(replace(config, perf=True)).close()
    assert "llama.cpp's figures load_s=" in caplog.text


# ---- what fits -------------------------------------------------------------------------------


def test_layers_leave_the_gpu_only_where_nobody_counted_them() -> None:
    from worker.llama.hardware.fit import fewer_layers

    assert [one.n_gpu_layers for one in fewer_layers(WorkerConfig(), 32, 0, 0)] == [24, 16, 8, 0]
    assert not list(fewer_layers(WorkerConfig(n_gpu_layers=10), 32, 0, 0))
    assert not list(fewer_layers(WorkerConfig(fit=False), 32, 0, 0))


def test_layers_leave_the_gpu_only_if_their_cache_fits_into_the_hosts_memory() -> None:
    from worker.llama.hardware.fit import fewer_layers

    found = fewer_layers(WorkerConfig(), 32, cache_bytes=100, free_bytes=50)
    assert [one.n_gpu_layers for one in found] == [24, 16]
    assert not list(fewer_layers(WorkerConfig(), 32, cache_bytes=100, free_bytes=20))


def test_a_device_must_keep_its_margin() -> None:
    from worker.llama.hardware.devices import ComputeDevice
    from worker.llama.hardware.fit import is_tight

    devices = [ComputeDevice(1, f"GPU{i}", "", 1, 8 << 30, (i + 1) * 100 << 20) for i in range(2)]
    assert is_tight(WorkerConfig(fit_target=(50,)), devices) == ""
    assert "GPU0 has 100 MiB free, not 150" in is_tight(WorkerConfig(fit_target=(150,)), devices)
    assert "GPU1 has 200" in is_tight(WorkerConfig(fit_target=(50, 300)), devices)
    assert is_tight(WorkerConfig(fit_target=(150,), fit=False), devices) == ""


def test_a_context_that_memory_refuses_is_tried_smaller(
    config: WorkerConfig, model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from worker.llama import model as loading

    make = loading._make_context
    asked: list[int] = []

    def short(model: Any, config: WorkerConfig, n_ctx_slot: int) -> Any:
        asked.append(n_ctx_slot)
        return make(model, config, n_ctx_slot) if n_ctx_slot <= 512 else None

    monkeypatch.setattr(loading, "_make_context", short)
    loaded = loading.load(replace(config, n_ctx=0, fit_ctx=256), lambda _fraction: None)
    assert (asked, loaded.n_ctx_slot) == ([2048, 1024, 512], 512)
    loaded.close()
    with pytest.raises(ConfigError, match="cannot make a context"):
        loading.load(replace(config, n_ctx=2048), lambda _fraction: None)


# ---- the draft model and the projector --------------------------------------------------------


def test_the_draft_model_has_places_and_threads_of_its_own() -> None:
    from worker.llama.draft import _of_draft

    config = WorkerConfig(
        device=("A",),
        cpus="0-3",
        prio=2,
        poll=7,
        cpu_strict=True,
        n_cpu_ffn=3,
        override_tensor=("a=CPU",),
    )
    follows = _of_draft(config, 512)
    assert (follows.device, follows.cpus, follows.poll, follows.cpu_strict) == (
        ("A",),
        "0-3",
        7,
        True,
    )
    assert (follows.override_tensor, follows.n_cpu_ffn, follows.cpu_moe) == ((), 0, False)
    own: dict[str, Any] = {
        "device": ("B",),
        "override_tensor": ("b=CPU",),
        "cpu_moe": True,
        "n_cpu_moe": 2,
        "cpus": "1",
        "cpus_batch": "2",
        "prio": 1,
        "prio_batch": 3,
        "poll": 1,
        "poll_batch": 2,
        "cpu_strict": False,
        "cpu_strict_batch": True,
    }
    draft = _of_draft(replace(config, **{f"{name}_draft": one for name, one in own.items()}), 512)
    assert {name: getattr(draft, name) for name in own} == own


@pytest.mark.parametrize(
    ("fields", "uses_gpu"),
    [({}, True), ({"mmproj_device": "none"}, False), ({"device": ("none",)}, False)],
)
def test_the_options_of_images_reach_the_projector(
    config: WorkerConfig, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], uses_gpu: bool
) -> None:
    import llama_cpp.mtmd_cpp as mtmd

    from worker.llama.media import reader

    seen: list[Any] = []

    def refuse(_path: bytes, _model: Any, params: Any) -> None:
        seen.append((params.image_min_tokens, params.image_max_tokens, params.batch_max_tokens))
        seen.append(bool(params.use_gpu))

    monkeypatch.setattr(mtmd, "mtmd_init_from_file", refuse)
    images: dict[str, Any] = {
        "image_min_tokens": 8,
        "image_max_tokens": 99,
        "mtmd_batch_max_tokens": 256,
    }
    with pytest.raises(ConfigError, match="cannot load the projector p"):
        reader.MediaReader(replace(config, mmproj="p", **images, **fields), None, 64)
    assert seen == [(8, 99, 256), uses_gpu]


def test_the_projectors_device_must_be_there(config: WorkerConfig) -> None:
    from worker.llama.media import reader

    with pytest.raises(ConfigError, match="--mmproj-device X9: no such device"):
        reader.MediaReader(replace(config, mmproj="p", mmproj_device="X9"), None, 64)
