"""What to reduce if memory is short: first the context, then layers on the GPU.

llama-server's --fit. Values that were set explicitly are not reduced.
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


def smaller_contexts(config: WorkerConfig, n_ctx_train: int) -> Iterator[WorkerConfig]:
    """Yield the configuration with half the context, a quarter ...; none if set explicitly."""
    if not config.fit or config.n_ctx:
        return
    n_ctx, least = n_ctx_train, max(1, config.fit_ctx)
    while n_ctx > least:
        n_ctx = max(least, n_ctx // 2)
        yield replace(config, n_ctx=n_ctx)


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
