"""Where llama.cpp puts each layer, as JSON: python -m benchmarks.gpu.offload MODEL N_GPU_LAYERS."""

import ctypes
import json
import re
import sys
from typing import Any


def look(model: str, n_gpu_layers: int) -> dict[str, Any]:
    """Load a model, compute one token, and return what llama.cpp's log says of its layers."""
    import llama_cpp

    lines: list[str] = []

    def keep(_level: int, text: bytes, _data: object) -> None:
        lines.append(text.decode(errors="replace"))

    callback = llama_cpp.llama_log_callback(keep)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = n_gpu_layers
    loaded = llama_cpp.llama_model_load_from_file(model.encode(), params)
    if not loaded:
        raise SystemExit("the model cannot be loaded:\n" + "".join(lines)[-2000:])
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = 256
    context = llama_cpp.llama_init_from_model(loaded, settings)
    token = (llama_cpp.llama_token * 1)(1)
    code = llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(token, 1))
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(loaded)
    return {
        "code": code,
        "can_offload": bool(llama_cpp.llama_supports_gpu_offload()),
        **read(lines),
    }


def read(lines: list[str]) -> dict[str, Any]:
    """Read the device of each layer, and the MiB of each buffer, from llama.cpp's log."""
    text = "".join(lines)
    layers = re.findall(r"layer +(\d+) assigned to device ([^,\s]+)", text)
    buffers = re.findall(r"(\S+) (model|KV|compute) buffer size = +([\d.]+) MiB", text)
    offloaded = re.search(r"offloaded (\d+)/(\d+) layers", text)
    return {
        "layers": {int(number): device for number, device in layers},
        "buffers": {f"{where} {kind}": float(size) for where, kind, size in buffers},
        "offloaded": [int(one) for one in offloaded.groups()] if offloaded else [0, 0],
    }


if __name__ == "__main__":
    print("\n" + json.dumps(look(sys.argv[1], int(sys.argv[2]))))
