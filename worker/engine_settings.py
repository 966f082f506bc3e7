"""The settings of the engine, from those of the worker and the model that it has loaded."""

import os
import re
from collections.abc import Mapping

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from worker.engine.backend import Backend
from worker.engine.cache.self_extend import SelfExtend
from worker.engine.engine_config import EngineConfig
from worker.host.topology import quarter_of_memory
from worker.speculation.kinds import kinds

CPU_STEP_TARGET_S, GPU_STEP_TARGET_S = 0.2, 0.04
"""Longest step while answers are streamed. Source: MLPerf Inference allows 0.2 s between two tokens
of Llama 2 70B in its server scenario, 0.04 s in its interactive one."""


def shows_texts(environ: Mapping[str, str]) -> bool:
    """Whether slots show clients' texts: LLAMA_SERVER_SLOTS_DEBUG is a number other than 0."""
    number = re.match(r"\s*[-+]?\d+", environ.get("LLAMA_SERVER_SLOTS_DEBUG", ""))
    return number is not None and int(number[0]) != 0


def engine_config(config: WorkerConfig, backend: Backend) -> EngineConfig:
    """Return the engine's configuration, with the values that depend on the loaded model."""
    default = GPU_STEP_TARGET_S if backend.is_gpu else CPU_STEP_TARGET_S
    return EngineConfig(
        n_slots=config.n_slots,
        n_ctx=backend.card.n_ctx,
        similarity=config.slot_similarity,
        step_target_s=config.step_target_ms / 1e3 or default,
        context_shift=config.context_shift,
        spec_slots=config.spec_slots,
        host_bytes=host_bytes(config.cache_ram),
        n_checkpoints=config.ctx_checkpoints,
        checkpoint_bytes=host_bytes(config.cache_ram or -1),
        self_extend=self_extend(config, backend),
        shows_texts=shows_texts(os.environ),
        stall_s=config.stall_s,
    )


def host_bytes(n_mib: int) -> int:
    """Return the size of the host cache in bytes: at most a quarter of the memory."""
    most = quarter_of_memory()
    return most if n_mib < 0 else min(most, n_mib << 20)


def self_extend(config: WorkerConfig, backend: Backend) -> SelfExtend | None:
    """Return the settings of self-extend; raises `ConfigError` if this model cannot do it."""
    n, width = config.grp_attn_n, config.grp_attn_w
    if n == 1:
        return None
    reason = ""
    if width % n:
        reason = f"grp_attn_w {width} must be a multiple of it"
    elif not backend.can_group:
        reason = "this kind of model has no positions that could be shared: use rope_scaling yarn"
    elif config.mmproj or kinds(config):
        reason = "it cannot be combined with mmproj or speculative decoding"
    if reason:
        raise ConfigError(f"grp_attn_n {n}: {reason}")
    return SelfExtend(n, width)
