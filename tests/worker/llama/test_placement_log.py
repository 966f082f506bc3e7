"""Which devices a worker sees, and what is said of where its layers lie."""

import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from worker import process
from worker.host.process_environment import process_environment
from worker.llama import library
from worker.llama.hardware.placement import log_placement

GPU = (
    b"load_tensors: offloaded 25/33 layers to GPU\n",
    b"load_tensors:        CUDA0 model buffer size =  4096.25 MiB\n",
    b"load_tensors:   CPU_Mapped model buffer size =   281.81 MiB\n",
    b"llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB\n",
)


@pytest.fixture(autouse=True)
def fresh() -> None:
    library.forget_placement()


def said(*lines: bytes) -> None:
    for line in lines:
        library.keep(2, line)


def test_layers_and_buffers_are_told(caplog: pytest.LogCaptureFixture) -> None:
    said(*GPU)
    with caplog.at_level(logging.INFO):
        log_placement(WorkerConfig(devices="0", n_gpu_layers=25))
    buffers = "CUDA0 model 4096 MiB, CPU_Mapped model 282 MiB, CUDA0 KV 512 MiB"
    assert caplog.text == f'model loaded n_gpu_layers=25 n_layers=33 buffers="{buffers}"\n'


@pytest.mark.parametrize("wanted", [{"devices": "0"}, {"n_gpu_layers": 10}], ids=str)
def test_a_gpu_that_has_no_layer_is_warned_of(
    caplog: pytest.LogCaptureFixture, wanted: Mapping[str, Any]
) -> None:
    """Fault D2: nothing told that all was computed on the CPU."""
    said(b"load_tensors:   CPU model buffer size =   281.81 MiB\n")
    log_placement(WorkerConfig(**wanted))
    assert "no layer lies on a GPU" in caplog.text


def test_the_number_of_layers_is_left_out_where_llama_cpp_does_not_tell_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said(b"load_tensors:   CPU model buffer size =   281.81 MiB\n")
    with caplog.at_level(logging.INFO):
        log_placement(WorkerConfig())
    assert caplog.text == 'model loaded n_gpu_layers=0 buffers="CPU model 282 MiB"\n'


def test_a_cpu_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    log_placement(WorkerConfig())
    assert not [one for one in caplog.records if one.levelno > logging.INFO]


def test_a_worker_that_runs_alone_sees_its_own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault D2: without a supervisor every worker saw all of them."""
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(sys, "setswitchinterval", lambda _s: None)
    monkeypatch.setattr(process, "bind", lambda _cpus: None)

    class Recorded:
        def __init__(self, _config: WorkerConfig, *, is_held: bool) -> None:
            assert not is_held
            self.seen = dict(os.environ)

        def run(self) -> int:
            assert self.seen["CUDA_VISIBLE_DEVICES"] == "2,3"
            assert self.seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
            return 0

    monkeypatch.setattr(process, "WorkerProcess", Recorded)
    assert process.run(WorkerConfig(devices="2,3")) == 0


def test_without_devices_all_are_seen() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in process_environment(WorkerConfig(), {})
