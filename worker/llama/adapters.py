"""LoRA adapters and control vectors: loaded with the model, applied to its context."""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp.llama_cpp as lib
import numpy as np

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from protocol.filenames import readable
from protocol.scaled_file import ScaledFile, split_scale
from worker.engine.adapters import Adapter, Scales
from worker.llama import library
from worker.llama.files.gguf import Vector, read_vectors


class LoadedAdapter(NamedTuple):
    """An adapter of llama.cpp; freed together with its model."""

    handle: Any
    about: Adapter


def load_adapters(model: Any, config: WorkerConfig) -> list[LoadedAdapter]:
    """Read the adapters; raises `ConfigError`.

    Call this before the context is made: the size of its graph depends on them.
    """
    return [_load(model, split_scale(text), config) for text in config.lora]


def _load(model: Any, file: ScaledFile, config: WorkerConfig) -> LoadedAdapter:
    library.forget_log()
    handle = lib.llama_adapter_lora_init(model, os.fsencode(file.path))
    if not handle:  # a NULL pointer object: falsy, but never None
        reason = library.last_warnings() or "is it a LoRA for this model?"
        raise ConfigError(f"cannot load LoRA adapter {file.path}: {reason}")
    if lib.llama_adapter_get_alora_n_invocation_tokens(handle):
        raise ConfigError(f"LoRA adapter {file.path} is an activated LoRA: not supported yet")
    about = Adapter(
        path=readable(file.path),
        scale=0.0 if config.lora_init_without_apply else file.scale,
        task_name=_meta(handle, b"adapter.lora.task_name"),
        prompt_prefix=_meta(handle, b"adapter.lora.prompt_prefix"),
    )
    return LoadedAdapter(handle, about)


def _meta(handle: Any, key: bytes) -> str:
    buffer = ctypes.create_string_buffer(4096)
    n = lib.llama_adapter_meta_val_str(handle, key, buffer, len(buffer))
    return buffer.value.decode(errors="replace") if n > 0 else ""


class LlamaAdapters:
    """Implements `worker.engine.adapters.Adapters` over one context."""

    def __init__(self, context: Any, adapters: Sequence[LoadedAdapter]) -> None:
        self._context = context
        self._all = adapters
        self._handles = [adapter.handle for adapter in adapters]
        self.loaded: Sequence[Adapter] = [adapter.about for adapter in adapters]
        self._used: Scales = (0.0,) * len(adapters)

    def on(self, context: Any) -> "LlamaAdapters":
        """Return the same adapters for another context of the model, all switched off."""
        return LlamaAdapters(context, self._all)

    def use(self, scales: Scales) -> None:
        """Apply these scales; after a change llama.cpp rebuilds its graph."""
        if scales == self._used:
            return
        n = len(self._handles)
        handles = (lib.llama_adapter_lora_p_ctypes * n)(*self._handles)
        lib.llama_set_adapters_lora(self._context, handles, n, (ctypes.c_float * n)(*scales))
        self._used = scales


def apply_control_vectors(model: Any, context: Any, config: WorkerConfig) -> None:
    """Add up the control vectors and set them permanently; raises `ConfigError`."""
    if not config.control_vector:
        return
    n_embd = int(lib.llama_model_n_embd(model))
    total = np.zeros(0, np.float32)
    for text in config.control_vector:
        part = _directions(split_scale(text), n_embd)
        total, part = _padded(total, len(part)), _padded(part, len(total))
        total += part
    first, last = (*config.control_vector_layers, 0, 0)[:2]
    pointer = total.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    n_layer = int(lib.llama_model_n_layer(model))
    range_ = (first if first > 0 else 1, last if last > 0 else n_layer)
    if lib.llama_set_adapter_cvec(context, pointer, len(total), n_embd, *range_):
        raise ConfigError(f"cannot apply the control vectors: {library.last_warnings()}")


def _directions(file: ScaledFile, n_embd: int) -> Vector:
    """Read the tensors `direction.N` one after the other, from layer 1 on."""
    vectors = read_vectors(Path(file.path))
    if not vectors:
        raise ConfigError(f"control vector {file.path} has no directions")
    result = np.zeros(0, np.float32)
    for name, vector in vectors.items():
        prefix, _, number = name.partition(".")
        if prefix != "direction" or not number.isdecimal() or int(number) == 0:
            raise ConfigError(f"control vector {file.path}: tensor '{name}' is not a direction.N")
        if len(vector) != n_embd:
            sizes = f"has {len(vector)} dimensions, the model {n_embd}"
            raise ConfigError(f"control vector {file.path} {sizes}")
        start = n_embd * (int(number) - 1)
        result = _padded(result, start + n_embd)
        result[start : start + n_embd] += vector * np.float32(file.scale)
    return result


def _padded(vector: Vector, n: int) -> Vector:
    return np.pad(vector, (0, max(0, n - len(vector))))
