"""Placement of tensors in buffers: --override-tensor, --cpu-moe and the like."""

import ctypes
import re
from collections.abc import Iterator
from typing import Any

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from worker.llama.hardware.devices import base, handles

_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE = r"\.ffn_(up|down|gate)\."
"""llama.cpp's own patterns (common/common.h)."""


class _Override(ctypes.Structure):
    """llama.cpp's `llama_model_tensor_buft_override`."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buffer", ctypes.c_void_p)]  # ctypes


def overrides(config: WorkerConfig) -> Any:
    """Return the array that llama.cpp reads, None without any; raises `ConfigError`."""
    wanted = list(_wanted(config))
    if not wanted:
        return None
    array = (_Override * (len(wanted) + 1))()  # an empty pattern ends it
    for entry, (pattern, buffer) in zip(array, wanted, strict=False):
        entry.pattern, entry.buffer = pattern.encode(), buffer
    return array


def _wanted(config: WorkerConfig) -> Iterator[tuple[str, int]]:
    buffers: dict[str, int] = {}
    for item in config.override_tensor:
        pattern, equals, name = item.rpartition("=")
        if not equals or not pattern:
            raise ConfigError(f"--override-tensor {item}: must be PATTERN=BUFFER")
        _check(pattern)
        buffers = buffers or _buffers()
        if name not in buffers:
            there = ", ".join(buffers)
            raise ConfigError(
                f"--override-tensor {item}: no buffer type {name} here; there is: {there}"
            )
        yield pattern, buffers[name]
    cpu = int(base().ggml_backend_cpu_buffer_type())
    if config.cpu_moe:
        yield _EXPERTS, cpu
    for n, pattern in ((config.n_cpu_moe, _EXPERTS), (config.n_cpu_ffn, _DENSE)):
        for layer in range(n):
            yield rf"blk\.{layer}{pattern}", cpu


def _check(pattern: str) -> None:
    """Raise an error for a pattern at which std::regex would throw and end the process."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--override-tensor {pattern}: no regular expression: {error}") from error


def _buffers() -> dict[str, int]:
    """Name the buffer of each device."""
    ggml, found = base(), {}
    for device in handles():
        if buffer := ggml.ggml_backend_dev_buffer_type(device):
            found[ggml.ggml_backend_buft_name(buffer).decode()] = int(buffer)
    return found
