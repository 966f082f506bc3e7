"""Facts about llama.cpp and about loading a model; `doctor` runs this as a child.

`python -m worker.llama.inspect` prints the library's facts as JSON; with `CONFIG NAME`, those
of loading that worker's model. It may crash, which is a finding too.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import llama_cpp
import llama_cpp.llama_cpp as lib

from protocol.config import config as configs
from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from worker.llama import library, model
from worker.llama.hardware import devices as hardware

_KINDS = {0: "cpu", 1: "gpu", 2: "gpu", 3: "accelerator"}


def about_library() -> dict[str, Any]:
    """Return versions, the extensions of the CPU that are used, and the devices."""
    library.start()
    return {
        "binding": llama_cpp.__version__,
        "llama": lib.llama_version().decode(),
        "build": library.build(),
        "report": hardware.report(),
        "system": lib.llama_print_system_info().decode(),
        "offloads": bool(lib.llama_supports_gpu_offload()),
        "locks": bool(lib.llama_supports_mlock()),
        "devices": devices(),
    }


def devices() -> list[dict[str, Any]]:
    """List what llama.cpp can compute on."""
    return [
        {
            "name": device.name,
            "description": device.description,
            "kind": _KINDS.get(device.kind, "other"),
            "free": device.free,
            "total": device.total,
        }
        for device in hardware.all_devices()
    ]


def about_loading(config: WorkerConfig) -> dict[str, Any]:
    """Load a model as a worker would, compute with it, and return times, memory and placement."""
    library.start()
    before = _free()
    began = time.monotonic()
    loaded = model.load(config, lambda _fraction: None)
    _compute(loaded)
    facts = {
        "seconds": time.monotonic() - began,
        "offloads": bool(lib.llama_supports_gpu_offload()),
        "taken": max(0, before - _free()),
        **library.placement()._asdict(),
    }
    loaded.close()
    return facts


def _compute(loaded: model.LoadedModel) -> None:
    """Decode a batch and a single token, which use different kernels."""
    if lib.llama_model_has_encoder(loaded.model):
        return
    token = max(0, lib.llama_vocab_bos(lib.llama_model_get_vocab(loaded.model)))
    for n_tokens in (4, 1):
        tokens = (lib.llama_token * n_tokens)(*[token] * n_tokens)
        if code := lib.llama_decode(loaded.context, lib.llama_batch_get_one(tokens, n_tokens)):
            raise ConfigError(f"llama.cpp cannot compute: llama_decode returned {code}")


def _free() -> int:
    return sum(int(device["free"]) for device in devices() if device["kind"] == "gpu")


def main(args: list[str]) -> int:
    """Print the facts as one line of JSON."""
    try:
        if args:
            path, name = args
            pool = configs.load(Path(path))
            facts = about_loading(next(worker for worker in pool.worker if worker.name == name))
        else:
            facts = about_library()
    except ConfigError as error:
        sys.stdout.write(json.dumps({"error": str(error)}))
        return 1
    sys.stdout.write(f"\n{json.dumps(facts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
