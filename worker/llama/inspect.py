"""Facts about llama.cpp and about loading a model; `doctor` runs this as a child.

`python -m worker.llama.inspect` prints the library's facts as JSON; with `CONFIG NAME`, those
of loading that worker's model. It may crash, which is a finding too.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import llama_cpp.llama_cpp as lib

from protocol.config import config as configs
from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from worker.engine.backend import DecodeFailed, EmbeddingPiece
from worker.engine_thread import open_backend, open_parts
from worker.llama import library
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
    """Open a model as a worker does, compute with it, and return times, memory and placement."""
    library.start()
    before = _free()
    began = time.monotonic()
    try:
        backend, drafter, _ = open_parts(
            replace(config, warmup=True), open_backend, lambda _fraction: None
        )
        if backend.embedder is not None:
            backend.embedder.embed([EmbeddingPiece(0, 0, [0, 0, 0, 0], True)])
    except DecodeFailed as error:
        raise ConfigError(f"llama.cpp cannot compute: {error}") from error
    facts = {
        "seconds": time.monotonic() - began,
        "offloads": bool(lib.llama_supports_gpu_offload()),
        "taken": max(0, before - _free()),
        **library.placement()._asdict(),
    }
    if drafter is not None:
        drafter.close()
    backend.close()
    return facts


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
