"""The devices that llama.cpp can compute on, by the names that --device takes."""

import ctypes
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from protocol.errors import ConfigError
from worker.llama.startup import open_ggml

NO_DEVICE = "none"
_CPU = 0
"""GGML_BACKEND_DEVICE_TYPE_CPU."""
_MIB = 1 << 20


class ComputeDevice(NamedTuple):
    """One device; memory in bytes."""

    handle: int
    name: str
    description: str
    kind: int
    """ggml's number: 0 the CPU, 1 and 2 a GPU, 3 an accelerator beside the CPU."""
    total: int
    free: int


@cache
def registry() -> ctypes.CDLL:
    """Open the list of backends, those of separate libraries included."""
    ggml = open_ggml()
    ggml.ggml_backend_load_all()
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    return ggml


@cache
def base() -> ctypes.CDLL:
    """Open the library that knows a device's properties."""
    ggml = open_ggml("ggml-base")
    for name in ("dev_name", "dev_description", "buft_name"):
        function = getattr(ggml, f"ggml_backend_{name}")
        function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    ggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_dev_buffer_type.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_buffer_type.argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_cpu_buffer_type.restype = ctypes.c_void_p
    size = ctypes.POINTER(ctypes.c_size_t)
    ggml.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, size, size]
    return ggml


def handles() -> list[int]:
    """List every device, the CPU included."""
    ggml = registry()
    return [int(ggml.ggml_backend_dev_get(i)) for i in range(ggml.ggml_backend_dev_count())]


def all_devices() -> list[ComputeDevice]:
    """List what llama.cpp can compute on."""
    return [_described(handle) for handle in handles()]


def devices() -> list[ComputeDevice]:
    """List the devices that layers can be offloaded to."""
    return [device for device in all_devices() if device.kind != _CPU]


def in_words(names: Sequence[str], *, is_gpu: bool) -> str:
    """Describe the devices of a model: the GPUs of these names (no name: all), or the CPU."""
    if is_gpu:
        found = [device.description for device in devices() if not names or device.name in names]
    else:
        found = [device.description for device in all_devices() if device.kind == _CPU]
    counts = Counter(text.strip() for text in found)
    return ", ".join(f"{n} x {text}" if n > 1 else text for text, n in counts.items())


def _described(handle: int) -> ComputeDevice:
    free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
    base().ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
    name = base().ggml_backend_dev_name(handle).decode(errors="replace")
    description = base().ggml_backend_dev_description(handle).decode(errors="replace")
    kind = int(base().ggml_backend_dev_type(handle))
    return ComputeDevice(handle, name, description, kind, total.value, free.value)


def find(name: str, flag: str) -> int:
    """Return the device of a name; raises `ConfigError` that lists those there are."""
    known = devices()
    for device in known:
        if device.name == name:
            return device.handle
    names = ", ".join(device.name for device in known) or NO_DEVICE
    raise ConfigError(f"{flag} {name}: no such device; there are {names} (see --list-devices)")


def device_list(names: Sequence[str]) -> Any:
    """Return the devices as the array that llama.cpp reads; no names is None: all of them."""
    if not names:
        return None
    found = [] if tuple(names) == (NO_DEVICE,) else [find(name, "--device") for name in names]
    return (ctypes.c_void_p * (len(found) + 1))(*found, None)


def report() -> str:
    """Write the devices down as llama-server's --list-devices does."""
    lines = [
        f"  {device.name}: {device.description} "
        f"({device.total // _MIB} MiB, {device.free // _MIB} MiB free)"
        for device in devices()
    ]
    return "\n".join(["Available devices:", *(lines or ["  (none)"])])
