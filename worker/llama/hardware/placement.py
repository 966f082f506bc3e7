"""What of a model lies on GPUs."""

import logging
from typing import Any

import llama_cpp.llama_cpp as lib

from protocol.config.config import WorkerConfig
from worker.llama import library
from worker.llama.hardware.devices import NO_DEVICE

logger = logging.getLogger(__name__)


def log_placement(config: WorkerConfig) -> None:
    """Log where layers and caches lie, and warn where a GPU was wanted and has none of them."""
    found = library.placement()
    logger.info(
        "model loaded",
        extra={
            "n_gpu_layers": found.n_offloaded,
            "n_layers": found.n_layers or None,  # unknown without a GPU
            "buffers": ", ".join(map(str, found.buffers)),
        },
    )
    is_wanted = bool(config.devices) or config.n_gpu_layers > 0
    if is_wanted and not found.n_offloaded:
        logger.warning(
            "no layer lies on a GPU",
            extra={
                "devices": config.devices or "all",
                "n_gpu_layers": config.n_gpu_layers,
                "action": "all is computed on the CPU",
                "hint": "is there a GPU, and was llama.cpp built for it? run llamapool doctor",
            },
        )


def uses_gpu(config: WorkerConfig) -> bool:
    """Return whether layers may lie on a GPU."""
    is_possible = bool(lib.llama_supports_gpu_offload()) and config.n_gpu_layers != 0
    return is_possible and config.device != (NO_DEVICE,)


def is_cache_on_gpu(model: Any, config: WorkerConfig) -> bool:
    """Return whether the KV cache lies in the memory of GPUs alone."""
    n_layer = int(lib.llama_model_n_layer(model))
    is_whole = config.n_gpu_layers < 0 or config.n_gpu_layers >= n_layer
    return uses_gpu(config) and is_whole and config.offload_kqv
