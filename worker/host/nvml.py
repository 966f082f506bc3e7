"""Lists the GPUs of NVIDIA's driver; runs as a child, because a broken driver may hang.

Prints `{"names": [...], "fault": "...", "free": {"0": 123}}`, the last being free bytes by index in
the order of the PCI bus. Without the driver's library all are empty.
"""

import ctypes
import json
import sys
from typing import Any

_NAME_CHARS = 96
"""NVML_DEVICE_NAME_V2_BUFFER_SIZE of nvml.h."""


def main() -> None:
    """Print the facts as JSON."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        sys.stdout.write(json.dumps({"names": [], "fault": "", "free": {}}))
        return
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    names: list[str] = []
    free: dict[int, int] = {}
    fault = _fault(nvml, nvml.nvmlInit_v2()) or _read(nvml, names, free)
    sys.stdout.write(json.dumps({"names": names, "fault": fault, "free": free}))


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def _read(nvml: Any, names: list[str], free: dict[int, int]) -> str:
    count = ctypes.c_uint()
    if fault := _fault(nvml, nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))):
        return fault
    for index in range(count.value):
        device, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_CHARS)
        code = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
        if fault := _fault(nvml, code or nvml.nvmlDeviceGetName(device, name, _NAME_CHARS)):
            return f"GPU {index}: {fault}"
        names.append(name.value.decode(errors="replace"))
        memory = _Memory()
        if not nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)):
            free[index] = memory.free
    return ""


def _fault(nvml: Any, code: int) -> str:
    return nvml.nvmlErrorString(code).decode(errors="replace") if code else ""


if __name__ == "__main__":
    main()
