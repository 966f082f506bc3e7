"""Lists the GPUs of NVIDIA's driver; runs as a child, because a broken driver may hang.

Prints `{"names": [...], "fault": "..."}`. Without the driver's library both are empty.
"""

import ctypes
import json
import sys
from typing import Any

_NAME_CHARS = 96


def main() -> None:
    """Print the facts as JSON."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        sys.stdout.write(json.dumps({"names": [], "fault": ""}))
        return
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    names: list[str] = []
    fault = _fault(nvml, nvml.nvmlInit_v2()) or _names(nvml, names)
    sys.stdout.write(json.dumps({"names": names, "fault": fault}))


def _names(nvml: Any, names: list[str]) -> str:
    count = ctypes.c_uint()
    if fault := _fault(nvml, nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))):
        return fault
    for index in range(count.value):
        device, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_CHARS)
        code = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
        if fault := _fault(nvml, code or nvml.nvmlDeviceGetName(device, name, _NAME_CHARS)):
            return f"GPU {index}: {fault}"
        names.append(name.value.decode(errors="replace"))
    return ""


def _fault(nvml: Any, code: int) -> str:
    return nvml.nvmlErrorString(code).decode(errors="replace") if code else ""


if __name__ == "__main__":
    main()
