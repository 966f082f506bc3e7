"""Loads a model and makes its context with llama.cpp, as a `WorkerConfig` says."""

import ctypes
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from worker.engine.cache.sequences import MAX_SEQUENCES, n_sequences
from worker.files.context_size import (
    LONGEST,
    contexts,
    fits_host,
    reachable_context,
    slot_context,
)
from worker.files.gguf_header import Header, cache_bytes, read_header, tensor_names
from worker.files.model_file import paths_of
from worker.host.topology import usable_memory
from worker.host.weights import maps
from worker.llama import library, startup
from worker.llama.adapters import LlamaAdapters, apply_control_vectors, load_adapters
from worker.llama.files import pages
from worker.llama.hardware import tensors
from worker.llama.hardware.devices import device_list, devices
from worker.llama.hardware.fit import fewer_layers, is_short, is_tight
from worker.llama.hardware.placement import is_cache_on_gpu, log_placement, uses_gpu
from worker.llama.hardware.threads import Threads, open_threads
from worker.speculation.kinds import longest_draft

logger = logging.getLogger(__name__)

Progress = Callable[[float], None]

_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_LOAD_MODES = {"auto": -1, "none": 0, "mmap": 1, "mlock": 2, "mmap+mlock": 3, "dio": 4}
_LAZY_MODES = {"off": 0, "auto": 1, "on": 2}
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}
_ROPE = {"": -1, "none": 0, "linear": 1, "yarn": 2}
_TYPES = {
    "f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7,
    "iq4_nl": 20,
}  # fmt: skip
_PROBED = 16
"""Rows of logits beside the slots' own, for prompts whose probabilities are wanted."""
_NEVER_SHARED = frozenset({"deepseek4", "glm5-next"})
"""Architectures whose cells stay with one sequence: llama.cpp aborts if a part of DeepSeek V4's is
shared, and sequences that share cells of GLM 5 Next get other logits."""
_NEVER_BATCHED = frozenset({"plamo2"})
"""Architectures whose sequences are computed one at a time: in a batch of several llama.cpp writes
the states of PLaMo 2 into those of others, or aborts."""


@dataclass(slots=True, kw_only=True)
class LoadedModel:
    """Owns the model and its context."""

    model: Any
    context: Any
    adapters: LlamaAdapters
    n_ctx_slot: int
    n_outputs: int
    is_gpu: bool
    is_unified: bool
    threads: Threads | None = None
    is_measured: bool = False
    """Log llama.cpp's own measurements when the model is freed."""

    def close(self) -> None:
        """Free context, threads and model, in this order."""
        if self.context:
            if self.is_measured:
                _log_figures(lib.llama_perf_context(self.context))
            lib.llama_free(self.context)
            self.context = None
        if self.threads is not None:
            self.threads.close()
            self.threads = None
        if self.model:
            lib.llama_model_free(self.model)
            self.model = None


def _log_figures(perf: Any) -> None:
    """Log what llama.cpp has measured; it gives times in milliseconds."""
    logger.info(
        "llama.cpp's figures",
        extra={
            "load_s": perf.t_load_ms / 1000,
            "prompt_s": perf.t_p_eval_ms / 1000,
            "n_prompt": perf.n_p_eval,
            "decode_s": perf.t_eval_ms / 1000,
            "n_decodes": perf.n_eval,
            "n_graphs_reused": perf.n_reused,
        },
    )


def load(config: WorkerConfig, on_progress: Progress) -> LoadedModel:
    """Read the model and make its context; raises `ConfigError` with llama.cpp's reason."""
    library.start()
    startup.place(config.numa)
    startup.add_rpc_servers(config.rpc)
    fault: ConfigError
    try:
        return _load(config, on_progress)
    except _Short as error:
        fault = error
    header = read_header(Path(config.model))
    n_layer = int(header.of_model("block_count") or 0)
    for smaller in fewer_layers(config, n_layer, _plain_cache(header, config), usable_memory()):
        logger.warning(
            "model does not fit",
            extra={
                "cause": fault,
                "action": "trying with fewer layers on the GPU",
                "n_gpu_layers": smaller.n_gpu_layers,
            },
        )
        try:
            return _load(smaller, on_progress)
        except _Short as error:
            fault = error
    raise fault


def _plain_cache(header: Header, config: WorkerConfig) -> int:
    """Return the bytes of the KV cache; 0 if sliding windows make it smaller than is known."""
    return 0 if header.of_model("attention.sliding_window") else cache_bytes(header, config)


class _Short(ConfigError):
    """There is not enough memory."""


def _load(config: WorkerConfig, on_progress: Progress) -> LoadedModel:
    library.forget_log()
    library.forget_placement()
    model = _load_model(config, on_progress)
    if not model:
        fault = _reason(f"cannot load {config.model}", "is it a complete GGUF file?")
        raise (_Short if is_short(library.last_warnings()) else ConfigError)(fault)
    if lib.llama_model_has_encoder(model) and lib.llama_model_has_decoder(model):
        lib.llama_model_free(model)
        what = f"{Path(config.model).name} has an encoder and a decoder, as T5"
        raise ConfigError(f"{what}: such models are not served")
    adapters = load_adapters(model, config)
    if ignored := library.ignored_override():
        lib.llama_model_free(model)
        raise ConfigError(f"--override-kv: {ignored}")
    context, n_ctx_slot = _fitting_context(model, config)
    log_placement(config)
    apply_control_vectors(model, context, config)
    pages.forget(paths_of(Path(config.model)))
    return LoadedModel(
        model=model,
        context=context,
        adapters=LlamaAdapters(context, adapters),
        n_ctx_slot=n_ctx_slot,
        n_outputs=count_outputs(config),
        is_gpu=uses_gpu(config),
        is_unified=is_unified(model, config),
        threads=open_threads(context, config),
        is_measured=config.perf,
    )


def _fitting_context(model: Any, config: WorkerConfig) -> tuple[Any, int]:
    """Make the largest context that fits, and return the context of a slot with it."""
    n_ctx_train = trained_context(model)
    if not config.n_ctx and not n_ctx_train:
        what = f"{config.model} says no length of its context, or one that cannot be"
        raise ConfigError(f"{what}: name one, -c or n_ctx")
    original = metadata(model, f"{architecture(model)}.rope.scaling.original_context_length")
    n_original = int(original) if original.isdecimal() else 0
    longest = n_ctx_train if has_position_table(config) else LONGEST
    n_ctx_train = min(reachable_context(config, n_ctx_train, n_original), longest)

    def fits(larger: WorkerConfig) -> bool:
        return is_cache_on_gpu(model, config) or fits_host(read_header(Path(config.model)), larger)

    fault = ""
    for candidate in contexts(config, n_ctx_train, fits):
        if fault:
            logger.warning(
                "context does not fit",
                extra={
                    "cause": fault,
                    "action": "trying with a smaller context",
                    "n_ctx": candidate.n_ctx,
                },
            )
        library.forget_log()
        n_ctx_slot = min(slot_context(candidate, n_ctx_train), longest)
        context = _make_context(model, candidate, n_ctx_slot)
        tight = is_tight(config, devices()) if context and uses_gpu(config) else ""
        if context and not tight:
            _warn_of_cap(candidate, n_ctx_slot, has_table=longest < LONGEST)
            return context, n_ctx_slot
        if context:
            lib.llama_free(context)
        what = f"cannot make a context for {Path(config.model).name}"
        remedy = "a smaller n_ctx or fewer slots may fit, or a quantized KV cache"
        fault = f"{what}: {tight}; {remedy}" if tight else _reason(what, remedy)
    lib.llama_model_free(model)
    raise (_Short if uses_gpu(config) else ConfigError)(fault)


def _warn_of_cap(config: WorkerConfig, n_ctx_slot: int, *, has_table: bool) -> None:
    """Say why slots have less than `-c` promises: the model knows no later positions."""
    wanted = config.n_ctx if config.kv_unified else config.n_ctx // config.n_slots
    hint = "--rope-scaling yarn reaches further"
    if n_ctx_slot < min(wanted, config.n_ctx_per_slot or wanted):
        logger.warning(
            "context is longer than the model was trained on",
            extra={
                "n_ctx": wanted,
                "action": f"each slot has {n_ctx_slot} tokens",
                "hint": "the model has no positions beyond" if has_table else hint,
            },
        )


def load_mode(config: WorkerConfig) -> int:
    """Return llama.cpp's number for how the file is read."""
    parts = ("mmap" * maps(config), "mlock" * config.use_mlock)
    by_flags = "+".join(filter(None, parts)) or "none"
    return _LOAD_MODES[config.load_mode or by_flags]


def count_outputs(config: WorkerConfig) -> int:
    """Return how many rows of logits a batch needs: one a slot, and one for each drafted token.

    Each is `n_vocab` floats, reserved for as long as the context lives. A few more let a prompt
    whose probabilities are wanted be read faster than a token at a time.
    """
    n_drafting = min(config.n_slots, config.spec_slots)
    return config.n_slots + max(_PROBED, n_drafting * longest_draft(config))


def architecture(model: Any) -> str:
    """Return the name of a model's architecture."""
    return metadata(model, "general.architecture")


def metadata(model: Any, key: str) -> str:
    """Return a value of a model's file as text; empty where it has none."""
    buffer = ctypes.create_string_buffer(256)
    n = lib.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode(errors="replace") if n >= 0 else ""


def can_generate(model: Any, context: Any) -> bool:
    """Return whether a model generates text: most encoders have no cache, a T5's no decoder."""
    return bool(lib.llama_get_memory(context)) and bool(lib.llama_model_has_decoder(model))


def is_recurrent(model: Any) -> bool:
    """Return whether layers keep one state a sequence, which can be neither cut nor shared."""
    return bool(lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model))


def can_cut_anywhere(model: Any) -> bool:
    """Return whether the end of a sequence can be removed, however much of it.

    Not if layers have sliding windows, for llama.cpp gives cells that no window reaches to other
    sequences; with `swa_full`, too.
    """
    return not (lib.llama_model_n_swa(model) > 0 or is_recurrent(model))


def can_copy(model: Any) -> bool:
    """Return whether a sequence can take what another one holds."""
    return architecture(model) not in _NEVER_SHARED


def can_batch(model: Any) -> bool:
    """Return whether a batch may have rows of several sequences."""
    return architecture(model) not in _NEVER_BATCHED


def has_position_table(config: WorkerConfig) -> bool:
    """Return whether positions are rows of a table (GPT-2): llama.cpp aborts beyond its end."""
    return "position_embd.weight" in tensor_names(Path(config.model))


def is_unified(model: Any, config: WorkerConfig) -> bool:
    """Return whether all sequences share one cache; otherwise each slot has its own.

    Recurrent layers always share one: in caches apart a batch whose sequences do not follow each
    other takes several passes over all weights, and a row that fills a gap would change a state.
    """
    return config.kv_unified or is_recurrent(model) or not can_copy(model)


def count_sequences(model: Any, config: WorkerConfig) -> int:
    """Return how many sequences there may be.

    Recurrent layers and sliding windows take memory for each, and so do caches of their own.
    """
    if not (config.kv_unified and can_cut_anywhere(model)):
        return config.n_slots
    return min(MAX_SEQUENCES, n_sequences(config.n_slots, config.cache_branches) + 1)


def spare_sequence(context: Any, config: WorkerConfig) -> int:
    """Return the number of the sequence that copies use, the last one; 0 if there is none."""
    last = int(lib.llama_n_seq_max(context)) - 1
    return last if last >= config.n_slots else 0


def trained_context(model: Any) -> int:
    """Return the trained context of a file; 0 if it names none, or an impossible one."""
    n_ctx = int(lib.llama_model_n_ctx_train(model))
    return n_ctx if 0 <= n_ctx <= LONGEST else 0


def _load_model(config: WorkerConfig, on_progress: Progress) -> Any:
    params = lib.llama_model_default_params()
    params.n_gpu_layers = config.n_gpu_layers
    params.split_mode = _SPLIT_MODES[config.split_mode]
    params.main_gpu = config.main_gpu
    params.load_mode = load_mode(config)
    params.check_tensors = config.check_tensors
    params.use_extra_bufts = config.repack
    params.lazy_mode = _LAZY_MODES[config.lazy_mode]
    params.no_host = config.no_host
    # Both are referenced until the model is loaded.
    chosen, moved = device_list(config.device), tensors.overrides(config)
    params.devices = ctypes.cast(chosen, ctypes.c_void_p) if chosen is not None else None
    params.tensor_buft_overrides = ctypes.cast(moved, ctypes.c_void_p) if moved else None
    overrides = startup.kv_overrides(config.override_kv)  # referenced until the model is loaded
    if config.override_kv:
        params.kv_overrides = overrides
    n_max = int(lib.llama_max_devices())
    shares = (ctypes.c_float * n_max)(*config.tensor_split[:n_max])
    if config.tensor_split:
        params.tensor_split = shares

    @lib.llama_progress_callback  # type: ignore[untyped-decorator] # llama_cpp is untyped
    def report(fraction: float, _data: object) -> bool:
        on_progress(fraction)
        return True

    params.progress_callback = report
    return lib.llama_model_load_from_file(os.fsencode(config.model), params)


def _make_context(model: Any, config: WorkerConfig, n_ctx_slot: int) -> Any:
    params = context_params(config)
    params.swa_full = config.swa_full
    params.n_ctx = n_ctx_slot * config.n_slots
    if config.kv_unified:
        params.n_ctx = max(config.n_ctx, n_ctx_slot)  # the slots share it as they need it
    params.kv_unified = is_unified(model, config)
    params.n_seq_max = count_sequences(model, config)
    # llama.cpp reserves a row of logits for each sequence and aborts where there is less room.
    params.n_outputs_max = max(count_outputs(config), params.n_seq_max)
    # Of a sequence whose tokens are chosen on the device; a draft has several in a batch.
    params.n_outputs_max_per_seq = 1 + longest_draft(config)
    params.n_batch = max(min(config.n_batch, params.n_ctx), params.n_outputs_max)
    params.n_ubatch = min(config.n_ubatch or params.n_batch, params.n_batch)
    return lib.llama_init_from_model(model, params)


def context_params(config: WorkerConfig) -> Any:
    """Return the parameters that all contexts of a model have in common."""
    params = lib.llama_context_default_params()
    params.n_threads = config.n_threads
    # llama.cpp uses n_threads only for single-token batches: with several slots, hardly ever.
    params.n_threads_batch = config.n_threads_batch or config.n_threads
    params.kv_unified = True
    params.swa_full = True
    params.flash_attn_type = FLASH_ATTN[config.flash_attn]
    params.type_k = _TYPES[config.cache_type_k]
    params.type_v = _TYPES[config.cache_type_v]
    params.offload_kqv = config.offload_kqv
    params.op_offload = config.op_offload
    params.no_perf = not config.perf
    params.rope_scaling_type = _ROPE[config.rope_scaling]
    params.rope_freq_base = config.rope_freq_base
    params.rope_freq_scale = config.rope_freq_scale
    params.yarn_ext_factor = config.yarn_ext_factor
    params.yarn_attn_factor = config.yarn_attn_factor
    params.yarn_beta_slow = config.yarn_beta_slow
    params.yarn_beta_fast = config.yarn_beta_fast
    params.yarn_orig_ctx = config.yarn_orig_ctx
    return params


def _reason(what: str, remedy: str) -> str:
    reason = library.last_warnings()
    return f"{what}: {reason}; {remedy}" if reason else f"{what}; {remedy}"
