"""Whether one more worker fits into memory: an estimate from the model's file, and free memory.

The estimate has the weights, the KV cache by the header of the file, and a reserve.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol.config.config import WorkerConfig
from worker.files.context_size import planned_cache
from worker.files.gguf_header import read_header
from worker.files.model_file import weigh
from worker.host import child
from worker.host.placement import Host, uses_gpu
from worker.host.topology import usable_memory
from worker.host.weights import files, maps

_RESERVE = 512 << 20
"""Bytes for compute buffers, the process itself, and what other processes allocate meanwhile."""
_NVML_S = 3.0
"""A broken driver may hang; the supervisor waits no longer for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes that one more worker takes."""

    host: int = 0
    device: int = 0
    devices: str = ""
    """`CUDA_VISIBLE_DEVICES` of the worker; empty is all."""


def need_of(config: WorkerConfig, host: Host, mapped: frozenset[str]) -> MemoryNeed:
    """Estimate a worker's memory; `mapped` are files that running workers have mapped."""
    if config.backend == "fake":
        return MemoryNeed()
    weights, is_on_gpu = sum(weigh(path) for path in files(config)), uses_gpu(host, config)
    try:
        header = read_header(Path(config.model))
        cache = planned_cache(header, config, is_on_gpu=is_on_gpu)
    except OSError:
        cache = 0
    if is_on_gpu:
        return MemoryNeed(device=weights + cache + _RESERVE, devices=config.devices)
    shared = sum(weigh(path) for path in files(config) & mapped) if maps(config) else 0
    return MemoryNeed(host=weights - shared + cache + _RESERVE)


def fits(need: MemoryNeed) -> bool:
    """Return whether this much memory is free now; unknown free memory counts as none."""
    if need.host and need.host > usable_memory():
        return False
    return not need.device or need.device <= free_device_memory(need.devices)


def free_device_memory(devices: str) -> int:
    """Return the free bytes of the GPUs that a worker may see; 0 if unknown."""
    argv = (sys.executable, "-P", "-m", "worker.host.nvml")
    free: Mapping[str, int] = child.run(argv, os.environ, _NVML_S).facts.get("free", {})
    names = [name.strip() for name in devices.split(",") if name.strip()]
    if not all(name.isdecimal() for name in names):
        return 0  # a UUID, or a part of a GPU
    return sum(free.get(name, 0) for name in names or free)
