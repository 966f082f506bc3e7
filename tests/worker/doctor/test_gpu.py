"""Whether a GPU can be used, and whether the layers are really on it."""

import signal
from typing import Any

import pytest

from worker.doctor.child import ChildOutcome
from worker.doctor.finding import Level
from worker.doctor.gpu import GpuFacts, judge_gpu, judge_load, read_driver, read_log

CUDA = {"name": "CUDA0", "description": "NVIDIA H200", "kind": "gpu", "free": 2**37, "total": 2**37}
HERE: dict[str, Any] = {"nodes": ("/dev/nvidia0",), "names": ("NVIDIA H200",)}


@pytest.mark.parametrize(
    ("facts", "level", "text", "mend"),
    [
        ({}, Level.OK, "the CPU computes", ""),
        ({"is_wanted": True}, Level.FAIL, "this host shows none", "--gpus all"),
        (HERE, Level.WARN, "this build of llama.cpp is for CPUs", "-DGGML_CUDA=on"),
        ({**HERE, "is_wanted": True}, Level.FAIL, "is for CPUs", "-DGGML_CUDA=on"),
        (
            {**HERE, "offloads": True, "visible": "-1"},
            Level.WARN,
            "hidden by CUDA_VISIBLE_DEVICES=-1",
            "--devices",
        ),
        (
            {**HERE, "offloads": True, "has_uvm": False},
            Level.FAIL,
            "/dev/nvidia-uvm is missing",
            "nvidia-modprobe",
        ),
        (
            {**HERE, "offloads": True, "driver_fault": "Driver/library version mismatch"},
            Level.FAIL,
            "version mismatch",
            "driver",
        ),
        ({**HERE, "offloads": True}, Level.FAIL, "sees no device", "update"),
        (
            {**HERE, "offloads": True, "devices": (CUDA,)},
            Level.OK,
            "CUDA0 NVIDIA H200, 128.0 GiB of 128.0 GiB free",
            "",
        ),
        (
            {**HERE, "offloads": True, "devices": (CUDA,), "visible": "0,5"},
            Level.FAIL,
            "devices 0,5: llama.cpp sees only CUDA0",
            "nvidia-smi -L",
        ),
        (
            {"devices": ({**CUDA, "kind": "cpu"},)},
            Level.OK,
            "the CPU computes",
            "",
        ),
    ],
)
def test_gpus_are_judged(facts: dict[str, Any], level: Level, text: str, mend: str) -> None:
    found = judge_gpu(GpuFacts(**facts))
    assert (found.level, text in found.text, mend in found.mend) == (level, True, True), found


def test_what_the_driver_says_is_read() -> None:
    assert read_driver(ChildOutcome(0, {"names": ["A", "B"], "fault": ""})) == (("A", "B"), "")
    assert read_driver(ChildOutcome(0, {"names": [], "fault": "Driver Not Loaded"}))[1]
    assert "stuck" in read_driver(ChildOutcome(None))[1]
    assert "segmentation fault" in read_driver(ChildOutcome(-signal.SIGSEGV))[1]


LOG = [
    "load_tensors: offloaded 31/31 layers to GPU",
    "load_tensors:   CPU_Mapped model buffer size =    28.69 MiB",
    "load_tensors:        CUDA0 model buffer size =    94.10 MiB",
    "llama_kv_cache:      CUDA0 KV buffer size =    22.50 MiB",
    "llama_context:  CUDA_Host  output buffer size =     0.19 MiB",
    "llama_context:      CUDA0 compute buffer size =   100.00 MiB",
    "llama_context:  CUDA_Host compute buffer size =     5.00 MiB",
    "nonsense",
]


def loaded(log: list[str], **facts: Any) -> ChildOutcome:
    taken = {"taken": 2**30, "offloads": True, "seconds": 1.5}
    return ChildOutcome(0, {"log": log, **taken, **facts})


def test_the_log_tells_what_is_where() -> None:
    found = read_log(LOG)
    assert (found.n_offloaded, found.n_layers) == (31, 31)
    assert found.on_gpu("model") == {"CUDA0": 94.1}
    assert found.on_gpu("KV") == {"CUDA0": 22.5}
    assert found.on_gpu("compute") == {"CUDA0": 100.0}


@pytest.mark.parametrize(
    ("outcome", "n_layers", "is_wanted", "level", "text"),
    [
        (loaded(LOG), -1, True, Level.OK, "31 of 31 layers on CUDA0 (94 MiB of weights, 22 MiB"),
        (loaded(LOG), 0, False, Level.OK, "all layers on the CPU, as asked"),
        (loaded([], offloads=False), -1, False, Level.OK, "on the CPU"),
        (loaded([], offloads=False), 99, True, Level.FAIL, "cannot offload"),
        (
            loaded(["offloaded 10/31 layers to GPU", LOG[2]]),
            99,
            True,
            Level.FAIL,
            "only 10 of 31 layers",
        ),
        (
            loaded(["offloaded 10/31 layers to GPU", LOG[2]]),
            -1,
            False,
            Level.WARN,
            "only 10 of 31",
        ),
        (loaded(["offloaded 10/31 layers to GPU", LOG[2]]), 10, True, Level.OK, "10 of 31 layers"),
        (loaded(["offloaded 31/31 layers to GPU"]), 99, True, Level.FAIL, "are on a GPU"),
        (loaded(LOG, taken=0), 99, True, Level.WARN, "the driver reports 0 MiB taken"),
        (ChildOutcome(None), 99, True, Level.FAIL, "did not come to an end"),
        (ChildOutcome(-signal.SIGILL), 0, False, Level.FAIL, "illegal instruction"),
        (ChildOutcome(-signal.SIGSEGV), 0, False, Level.FAIL, "segmentation fault"),
        (
            ChildOutcome(1, {"error": "cannot load x"}),
            0,
            False,
            Level.FAIL,
            "m.gguf: cannot load x",
        ),
    ],
)
def test_layers_must_be_where_they_were_asked(
    outcome: ChildOutcome, n_layers: int, is_wanted: bool, level: Level, text: str
) -> None:
    found = judge_load(outcome, "m.gguf", n_layers, is_wanted=is_wanted)
    assert (found.level, text in found.text) == (level, True), found
    assert found.mend or level is Level.OK
