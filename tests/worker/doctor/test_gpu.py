"""Whether a GPU can be used, and whether the layers are really on it."""

import signal
from typing import Any

import pytest

from worker.doctor.finding import Level
from worker.doctor.gpu import GpuFacts, check_gpu, check_load, mib_on_gpus, read_driver
from worker.host.child import ChildOutcome

CUDA = {"name": "CUDA0", "description": "NVIDIA H200", "kind": "gpu", "free": 2**37, "total": 2**37}
HERE: dict[str, Any] = {"nodes": ("/dev/nvidia0",), "names": ("NVIDIA H200",)}


@pytest.mark.parametrize(
    ("facts", "level", "text", "remedy"),
    [
        ({}, Level.OK, "the CPU computes", ""),
        ({"is_wanted": True}, Level.FAIL, "this host has none", "--gpus all"),
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
def test_gpus_are_judged(facts: dict[str, Any], level: Level, text: str, remedy: str) -> None:
    found = check_gpu(GpuFacts(**facts))
    assert (found.level, text in found.text, remedy in found.remedy) == (level, True, True), found


def test_what_the_driver_says_is_read() -> None:
    assert read_driver(ChildOutcome(0, {"names": ["A", "B"], "fault": ""})) == (("A", "B"), "")
    assert read_driver(ChildOutcome(0, {"names": [], "fault": "Driver Not Loaded"}))[1]
    assert "stuck" in read_driver(ChildOutcome(None))[1]
    assert "segmentation fault" in read_driver(ChildOutcome(-signal.SIGSEGV))[1]


BUFFERS = (
    ("CPU_Mapped", "model", 28.69),
    ("CUDA0", "model", 94.10),
    ("CUDA0", "KV", 22.50),
    ("CUDA0", "compute", 100.0),
    ("CUDA_Host", "compute", 5.0),
)


def loaded(n_offloaded: int = 31, buffers: Any = BUFFERS, **facts: Any) -> ChildOutcome:
    placed = {"n_offloaded": n_offloaded, "n_layers": 31, "buffers": buffers}
    taken = {"taken": 2**30, "offloads": True, "seconds": 1.5}
    return ChildOutcome(0, {**placed, **taken, **facts})


def test_buffers_on_gpus_are_added_up() -> None:
    more = (*BUFFERS, ("CUDA1", "model", 1.0), ("CUDA0", "model", 2.0))
    assert mib_on_gpus(more, "model") == {"CUDA0": 96.10, "CUDA1": 1.0}
    assert mib_on_gpus(more, "compute") == {"CUDA0": 100.0}


@pytest.mark.parametrize(
    ("outcome", "n_layers", "is_wanted", "level", "text"),
    [
        (loaded(), -1, True, Level.OK, "31 of 31 layers on CUDA0 (94 MiB of weights, 22 MiB"),
        (loaded(), 0, False, Level.OK, "all layers on the CPU, as asked"),
        (loaded(0, (), offloads=False), -1, False, Level.OK, "on the CPU"),
        (loaded(0, (), offloads=False), 99, True, Level.FAIL, "cannot offload"),
        (
            loaded(10),
            99,
            True,
            Level.FAIL,
            "only 10 of 31 layers",
        ),
        (
            loaded(10),
            -1,
            False,
            Level.WARN,
            "only 10 of 31",
        ),
        (loaded(10), 10, True, Level.OK, "10 of 31 layers"),
        (loaded(31, ()), 99, True, Level.FAIL, "are on a GPU"),
        (loaded(taken=0), 99, True, Level.WARN, "the driver reports 0 MiB taken"),
        (ChildOutcome(None), 99, True, Level.FAIL, "did not end"),
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
    found = check_load(outcome, "m.gguf", n_layers, is_wanted=is_wanted)
    assert (found.level, text in found.text) == (level, True), found
    assert found.remedy or level is Level.OK
    assert "-v" not in found.remedy or "serve -v" in found.remedy, "the doctor itself shows no more"
