"""What to do if a device's memory is short: llama-server's --fit.

First the context becomes smaller (`worker.files.context_size`), then fewer layers are on the GPU.
Values that were set explicitly are not reduced.
"""

from collections.abc import Iterator
from dataclasses import replace

from protocol.config.config import WorkerConfig
from worker.llama.hardware.devices import ComputeDevice

_MIB = 1 << 20
_SHARES = (0.75, 0.5, 0.25, 0.0)
"""Shares of the layers to try on the GPU, where not all of them fit."""
_WORDS = ("alloc", "out of memory", "memory buffer")
"""Texts in llama.cpp's messages about failed allocations."""


def fewer_layers(
    config: WorkerConfig, n_layer: int, cache_bytes: int, free_bytes: int
) -> Iterator[WorkerConfig]:
    """Yield the configuration with fewer and fewer layers on the GPU; none if set explicitly.

    The other layers' part of the KV cache, of `cache_bytes` in all, must fit into the host's
    `free_bytes`: the system grants more, and kills processes when llama.cpp writes zeros into it.
    """
    if config.fit and config.n_gpu_layers < 0:
        for share in _SHARES:
            if cache_bytes * (1 - share) <= free_bytes:
                yield replace(config, n_gpu_layers=int(n_layer * share))


def is_short(said: str) -> bool:
    """Return whether llama.cpp's last messages are about memory."""
    return any(word in said.lower() for word in _WORDS)


def is_tight(config: WorkerConfig, used: list[ComputeDevice]) -> str:
    """Return a device with less free memory than must stay free; "" if there is none."""
    if not config.fit:
        return ""
    margins = config.fit_target
    for index, device in enumerate(used):
        margin = margins[index] if index < len(margins) else (*margins, 0)[0]
        if device.free < margin * _MIB:
            return f"{device.name} has {device.free // _MIB} MiB free, not {margin}"
    return ""
